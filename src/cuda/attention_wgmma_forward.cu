// Attention forward for bf16 with warpgroup products: image patches and a class token, without masks or dropout.
//
// One block an SM, of four warpgroups, walks over (sample, head)s. A warpgroup owns 64 of the 256 main queries and
// takes 64 keys at a time; softmax as in attention_forward.cuh. TMA moves everything but lse and the odd output:
//   K, V   in blocks of 64 tokens through a ring of kSlots slots, one head's after the other's; thread 0 asks for them.
//          Everybody reads every slot, and it is filled anew when all warps have told its `free` barrier that they are
//          done with it: there is no barrier of the whole block, and warpgroups may be some steps apart
//   Q      each warpgroup asks for its rows of the next head while it works on this one, in the other of two buffers
//   out    is put where this head's Q was, and leaves from there while the next head is worked on
//
// A vision tower has 257 tokens: 256 patches and the class token. A tile for one more query, or 8 columns for one more
// key, would cost up to a quarter of all; instead
//   the odd key (the last) starts the softmax of every query: its score by one narrow product, its V row as it is;
//   the odd query (the last) takes every warp's 16 keys by mma.sync, warpgroup g's among those of block g, and the
//   warps' shares are merged by the first warpgroup while the next head has begun.
// Each warpgroup has its own copy of the odd rows, which comes and goes with its Q. Without an odd token it is zeros.
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "cuda/attention_forward.cuh"
#include "cuda/attention_wgmma.cuh"
#include "cuda/kernels.h"
#include "cuda/vector.cuh"

namespace blipft::attention {
namespace {

constexpr int kGroups = 4, kThreads = kGroups * 128, kWarps = kThreads / 32;
constexpr int kTokens = 64 * kGroups, kSteps = kTokens / 64;
/// When thread 0 is done with a block, it asks for the next head's same one, in the slot of the block before.
constexpr int kSlots = kSteps + 1;

/// What TMA is told of the operands.
struct ForwardMaps {
  TensorMaps q, k, v, out;
};

/// Byte offsets in shared memory.
template <int D>
struct Layout {
  static constexpr int Q = 0, QTile = Tile<D>::bytes(kTokens);                            // two buffers
  static constexpr int Slots = 2 * QTile, Block = Tile<D>::bytes(64), Slot = 2 * Block;  // K and V of 64 tokens
  // Rows q, k, v of the odd token, zeros up to a multiple of 16 columns: [buffer][warpgroup][3].
  static constexpr int OddRow = pitch<D> * 2, OddRows = Slots + kSlots * Slot, OddBytes = 2 * kGroups * 3 * OddRow;
  static constexpr int OddShares = OddRows + OddBytes;           // f32 [kWarps][D]: shares of P V
  static constexpr int OddNumbers = OddShares + kWarps * D * 4;  // float2 [kWarps]: base and sum of the shares
  // Barriers, 8 bytes each.
  static constexpr int Full = OddNumbers + kWarps * 8, Free = Full + 8 * kSlots;  // of the slots
  static constexpr int Queries = Free + 8 * kSlots;                               // [buffer][warpgroup]
  static constexpr int SharesMade = Queries + 8 * 2 * kGroups, SharesMerged = SharesMade + 8;
  static constexpr int Bytes = SharesMerged + 8;
  static_assert(QTile % 1024 == 0 && Block % 1024 == 0 && OddRow % 16 == 0 && Full % 8 == 0);
  static_assert(Bytes <= 227 << 10, "one block an SM");
};

#ifdef BLIPFT_WGMMA_CODE

/// x, to the compiler an unknown number: what follows from it is computed again, and takes no registers meanwhile.
__device__ __forceinline__ int fresh(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
/// The number of this warpgroup, the same in all lanes.
__device__ __forceinline__ int fresh_group() {
  return static_cast<int>(uniform(static_cast<uint32_t>(fresh_thread() / 128)));
}

/// Where a block of keys lies in the ring: its slot, and the how-many-th block that is there.
struct Place {
  int slot, phase;

  __device__ __forceinline__ Place next() const {
    return slot + 1 == kSlots ? Place{0, phase + 1} : Place{slot + 1, phase};
  }
  __device__ __forceinline__ Place before() const {
    return slot == 0 ? Place{kSlots - 1, phase - 1} : Place{slot - 1, phase};
  }
  template <int D>
  __device__ __forceinline__ uint32_t keys(uint32_t shared) const {
    return shared + static_cast<uint32_t>(Layout<D>::Slots + slot * Layout<D>::Slot);
  }
  template <int D>
  __device__ __forceinline__ uint32_t values(uint32_t shared) const {
    return keys<D>(shared) + static_cast<uint32_t>(Layout<D>::Block);
  }
  template <int D>
  __device__ __forceinline__ CopyBarrier full(uint32_t shared) const {
    return {shared + static_cast<uint32_t>(Layout<D>::Full + 8 * slot)};
  }
  template <int D>
  __device__ __forceinline__ ThreadBarrier free(uint32_t shared) const {
    return {shared + static_cast<uint32_t>(Layout<D>::Free + 8 * slot)};
  }
};

struct Head {
  int b, h;
};
__device__ __forceinline__ Head head_of(const Params& p, int number) { return {number / p.heads, number % p.heads}; }

template <int D>
__device__ __forceinline__ CopyBarrier queries_barrier(uint32_t shared, int buffer, int group) {
  return {shared + static_cast<uint32_t>(Layout<D>::Queries + 8 * (buffer * kGroups + group))};
}
/// Offset of a warpgroup's copy of an odd row. row: 0 q, 1 k, 2 v.
template <int D>
__device__ __forceinline__ int odd_row(int buffer, int group, int row) {
  return Layout<D>::OddRows + ((buffer * kGroups + group) * 3 + row) * Layout<D>::OddRow;
}

/// Starts copying a block of K and V. One thread.
template <int D>
__device__ __forceinline__ void load_block(const ForwardMaps& maps, const Head& head, int block, const Place& place,
                                           uint32_t shared) {
  const CopyBarrier full = place.full<D>(shared);
  full.expect(Layout<D>::Slot);
  start_load<D>(maps.k, place.keys<D>(shared), 64, 0, 64 * block, head.h, head.b, full);
  start_load<D>(maps.v, place.values<D>(shared), 64, 0, 64 * block, head.h, head.b, full);
}

/// Starts copying a warpgroup's rows of Q, and its copy of the odd rows. One thread.
template <int D>
__device__ __forceinline__ void load_queries(const Params& p, const ForwardMaps& maps, const Head& head, int buffer,
                                             int group, uint32_t shared, bool odd) {
  using L = Layout<D>;
  const CopyBarrier there = queries_barrier<D>(shared, buffer, group);
  there.expect(Tile<D>::bytes(64) + (odd ? 3 * 2 * D : 0));
  start_load<D>(maps.q, shared + static_cast<uint32_t>(L::Q + buffer * L::QTile), kTokens, 64 * group, 64 * group,
                head.h, head.b, there);
  if (!odd) return;
#pragma unroll
  for (int row = 0; row < 3; ++row) {
    const View view = row == 0 ? p.q : (row == 1 ? p.k : p.v);
    start_row(view.head<const bf16>(head.b, head.h, D) + kTokens * view.row_stride,
              shared + static_cast<uint32_t>(odd_row<D>(buffer, group, row)), 2 * D, there);
  }
}

/// What a warp knows about its 16 queries, as RowState.
template <int D>
struct Softmax {
  RowAccumulator<D> o;
  float base[2], sum[2];
};

/// Addresses of the parts of a warpgroup's rows of Q.
struct Queries {
  uint32_t left, right;
};
template <int D>
__device__ __forceinline__ Queries queries_of(uint32_t shared, int buffer, int group) {
  const uint32_t tile = shared + static_cast<uint32_t>(Layout<D>::Q + buffer * Layout<D>::QTile);
  return {uniform(tile + static_cast<uint32_t>(64 * group * 128)),
          uniform(tile + static_cast<uint32_t>(Tile<D>::right(kTokens) + 64 * group * 64))};
}

/// s = Q K^T of the warpgroup and a block of keys. Not waited for.
template <int D>
__device__ __forceinline__ void start_scores(float (&s)[8][4], const Queries& queries, uint32_t keys) {
  const uint32_t k = uniform(keys);
  multiply_transposed<D, 8>(s, queries.left, queries.right, k, k + static_cast<uint32_t>(Tile<D>::right(64)));
}

/// Starts the softmax of this warp's queries with the odd key, if there is one; makes the scores of the first block.
template <int D>
__device__ __forceinline__ void start_head(Softmax<D>& state, float (&s)[8][4], const Place& place, int buffer,
                                           int group, uint32_t shared, const char* memory, bool odd,
                                           float scale_log2) {
  const Queries queries = queries_of<D>(shared, buffer, group);
  const int t = static_cast<int>(threadIdx.x) & 3;
  float first[1][4];
  begin_products();
  multiply_row<D>(first, queries.left, queries.right,
                  uniform(shared + static_cast<uint32_t>(odd_row<D>(buffer, group, 1))));
  start_scores<D>(s, queries, place.keys<D>(shared));
  commit_products();
  wait_products<0>();
  pin(first);
  pin(s);
  const uint32_t* row = reinterpret_cast<const uint32_t*>(memory + odd_row<D>(buffer, group, 2)) + t;
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    const float2 v = unpack(row[4 * n]);
    float(&o)[4] = state.o.tile(n);
    o[0] = o[2] = v.x;
    o[1] = o[3] = v.y;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // Column 0 is the key; lane 0 of each quad holds it.
    const float score = __shfl_sync(0xffffffffu, first[0][2 * half], static_cast<int>(threadIdx.x) & 28);
    state.base[half] = odd ? score * scale_log2 : -INFINITY;
    state.sum[half] = odd && t == 0 ? 1.0f : 0.0f;
  }
  state.o.pin_all();  // without this ptxas makes the loop's products wait for each other
}

/// The softmax over 64 more keys: s becomes their probabilities, as A fragments.
template <int D>
__device__ __forceinline__ void take_scores(uint32_t (&a)[4][4], Softmax<D>& state, float (&s)[8][4],
                                            float scale_log2) {
  float top[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float x = -INFINITY;
#pragma unroll
    for (int n = 0; n < 8; ++n) x = fmaxf(x, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    top[half] = quad_max(x) * scale_log2;
  }
  if (__any_sync(0xffffffffu, top[0] > state.base[0] + kSlack || top[1] > state.base[1] + kSlack)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float now = fmaxf(state.base[half], top[half]), shrink = exp2_approx(state.base[half] - now);
      state.base[half] = now;
      state.sum[half] *= shrink;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        state.o.tile(n)[2 * half] *= shrink;
        state.o.tile(n)[2 * half + 1] *= shrink;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int n = 2 * k; n < 2 * k + 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[n][e] = exp2_approx(fmaf(s[n][e], scale_log2, -state.base[e / 2]));
        state.sum[e / 2] += s[n][e];
      }
    pack_a(a[k], s[2 * k], s[2 * k + 1]);
  }
}

/// A warp's share of the odd query: its output, base and sum over 16 keys, to shared memory. keys, values: the block
/// that has them.
template <int D>
__device__ __forceinline__ void share_odd_query(uint32_t keys, uint32_t values, const char* query_row, char* memory,
                                                float scale_log2) {
  using L = Layout<D>;
  const int warp = fresh_thread() / 32, lane = fresh_thread() & 31, row0 = 16 * (warp & 3);
  const uint32_t* query = reinterpret_cast<const uint32_t*>(query_row) + lane;
  const bool first_row = lane < 4;  // the query is row 0 of A, which lanes 0 to 3 hold
  float s[2][4] = {};
#pragma unroll
  for (int k = 0; k < pitch<D> / 16; ++k) {
    uint32_t b[4];
    ldmatrix4(b, keys + Tile<D>::offset(64, row0 + (lane & 7) + (lane >> 4) * 8, 2 * k + (lane >> 3 & 1)));
    const uint32_t a[4] = {first_row ? query[8 * k] : 0, 0, first_row ? query[8 * k + 4] : 0, 0};
    mma(s[0], a, b[0], b[1]);
    mma(s[1], a, b[2], b[3]);
  }
  const float base = quad_max(fmaxf(fmaxf(s[0][0], s[0][1]), fmaxf(s[1][0], s[1][1]))) * scale_log2;
  float sum = 0;
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      s[n][e] = exp2_approx(fmaf(s[n][e], scale_log2, -base));
      sum += s[n][e];
    }
  sum = quad_sum(sum);
  const uint32_t a[4] = {first_row ? pack(s[0][0], s[0][1]) : 0, 0, first_row ? pack(s[1][0], s[1][1]) : 0, 0};
  float2* out = reinterpret_cast<float2*>(memory + L::OddShares + warp * D * 4) + lane;
#pragma unroll
  for (int d = 0; d < pitch<D> / 16; ++d) {
    uint32_t v[4];
    float o[2][4] = {};
    ldmatrix4_trans(v, values + Tile<D>::offset(64, row0 + (lane & 15), 2 * d + (lane >> 4)));
    mma(o[0], a, v[0], v[1]);
    if (first_row) out[8 * d] = make_float2(o[0][0], o[0][1]);
    if (16 * d + 8 >= D) continue;
    mma(o[1], a, v[2], v[3]);
    if (first_row) out[8 * d + 4] = make_float2(o[1][0], o[1][1]);
  }
  if (lane == 0) reinterpret_cast<float2*>(memory + L::OddNumbers)[warp] = make_float2(base, sum);
}

/// Merges the shares of the odd query with its own key, and stores its row; for the first warps, a column a thread.
/// rows: q, k, v.
template <int D>
__device__ __forceinline__ void store_odd_query(const Params& p, const Head& head, const char* odd_rows,
                                                const char* memory, float scale_log2) {
  using L = Layout<D>;
  const int column = fresh_thread(), lane = column & 31;
  if (column / 32 > (D - 1) / 32) return;
  constexpr int kRow = L::OddRow / 2;
  const bf16* rows = reinterpret_cast<const bf16*>(odd_rows);
  float score = 0;
#pragma unroll
  for (int d = 0; d < D; d += 32)
    if (d + lane < D) score = fmaf(__bfloat162float(rows[d + lane]), __bfloat162float(rows[kRow + d + lane]), score);
  score = warp_sum(score);
  if (column >= D) return;
  const float2* numbers = reinterpret_cast<const float2*>(memory + L::OddNumbers);
  const float* shares = reinterpret_cast<const float*>(memory + L::OddShares) + column;
  float base = score * scale_log2;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) base = fmaxf(base, numbers[w].x);
  float sum = exp2_approx(fmaf(score, scale_log2, -base)), out = sum * __bfloat162float(rows[2 * kRow + column]);
#pragma unroll 4
  for (int w = 0; w < kWarps; ++w) {
    const float factor = exp2_approx(numbers[w].x - base);
    sum = fmaf(numbers[w].y, factor, sum);
    out = fmaf(shares[w * D], factor, out);
  }
  p.out.head<bf16>(head.b, head.h, D)[kTokens * p.out.row_stride + column] = __float2bfloat16_rn(out / sum);
  if (column == 0)
    p.lse[(static_cast<int64_t>(head.b) * p.heads + head.h) * p.query_tokens + kTokens] = (base + log2f(sum)) * kLn2;
}

/// Stores lse of this warp's queries, and starts storing out = o / sum, from this buffer of Q.
template <int D>
__device__ __forceinline__ void store_queries(Softmax<D>& state, const Params& p, const ForwardMaps& maps,
                                              const Head& head, uint32_t shared, int buffer) {
  const int thread = fresh_thread(), row0 = thread / 32 * 16, group = fresh_group();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(state.sum[half]), factor = 1.0f / sum;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      state.o.tile(n)[2 * half] *= factor;
      state.o.tile(n)[2 * half + 1] *= factor;
    }
    if ((thread & 3) == 0)
      p.lse[(static_cast<int64_t>(head.b) * p.heads + head.h) * p.query_tokens + row0 + 8 * half + (thread >> 2 & 7)] =
          (state.base[half] + log2f(sum)) * kLn2;
  }
  __syncwarp();
  wait_for_warpgroup(group);  // nobody reads these rows of Q any more
  const uint32_t tile = shared + static_cast<uint32_t>(Layout<D>::Q + buffer * Layout<D>::QTile);
  const uint32_t right = tile + static_cast<uint32_t>(Tile<D>::right(kTokens));
  store_part<128>(tile, row0, state.o.left, 1.0f);
  if constexpr (Tile<D>::kHasRight) store_part<64>(right, row0, state.o.right, 1.0f);
  publish();
  wait_for_warpgroup(group);
  if (fresh_thread() % 128 == 0) {
    start_store<false>(maps.out, tile + static_cast<uint32_t>(64 * group * 128), 64 * group, head.h, head.b);
    if constexpr (Tile<D>::kHasRight)
      start_store<true>(maps.out, right + static_cast<uint32_t>(64 * group * 64), 64 * group, head.h, head.b);
    commit_stores();
  }
  __syncwarp();
}

#endif  // BLIPFT_WGMMA_CODE

template <int D>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_forward_kernel(const Params p, const __grid_constant__ ForwardMaps maps) {
#ifdef BLIPFT_WGMMA_CODE
  using L = Layout<D>;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const float scale_log2 = p.scale * kLog2e;
  const bool odd = p.query_tokens > kTokens;
  const int heads = p.batch * p.heads, stride = static_cast<int>(gridDim.x);
  const ThreadBarrier shares_made{shared + L::SharesMade}, shares_merged{shared + L::SharesMerged};
  int number = static_cast<int>(blockIdx.x);

  if (fresh_thread() == 32) {
    prefetch(maps.q);
    prefetch(maps.k);
    prefetch(maps.v);
  }
  if (fresh_thread() == 0) {
    for (int slot = 0; slot < kSlots; ++slot) {
      Place{slot, 0}.full<D>(shared).init();
      Place{slot, 0}.free<D>(shared).init(kWarps);
    }
    for (int i = 0; i < 2 * kGroups; ++i) queries_barrier<D>(shared, 0, i).init();
    shares_made.init(kWarps);
    shares_merged.init(1);
    publish_barriers();
  }
  for (int i = fresh_thread(); i < L::OddBytes / 16; i += kThreads)
    reinterpret_cast<uint4*>(memory + L::OddRows)[i] = uint4{0, 0, 0, 0};
  publish();
  __syncthreads();
  if (fresh_thread() % 128 == 0) load_queries<D>(p, maps, head_of(p, number), 0, fresh_thread() / 128, shared, odd);
  if (fresh_thread() == 0)
    for (int step = 0; step < kSteps; ++step)
      load_block<D>(maps, head_of(p, number), step, Place{step, 0}, shared);
  __syncwarp();

  Place place{0, 0};
#pragma unroll 1
  for (int round = 0; number < heads; ++round, number += stride) {
    const bool more = number + stride < heads;
    Softmax<D> state;
    float s[8][4];
    {
      const int buffer = round & 1, group = fresh_group();
      queries_barrier<D>(shared, buffer, group).wait(round >> 1);
      place.full<D>(shared).wait(place.phase);
      start_head<D>(state, s, place, buffer, group, shared, memory, odd, scale_log2);
    }
    const auto take_block = [&](auto is_last, int step) {
      constexpr bool last = decltype(is_last)::value;
      const Place next = place.next();
      uint32_t a[4][4];
      take_scores<D>(a, state, s, scale_log2);
      if (!last) next.full<D>(shared).wait(next.phase);
      // The product with V, and the scores of the next keys with it.
      begin_products();
      const uint32_t values = uniform(place.values<D>(shared));
#pragma unroll
      for (int k = 0; k < 4; ++k)
        state.o.add(a[k], Operand::left(values),
                    Operand::right(values + static_cast<uint32_t>(Tile<D>::right(64))), k);
      if (!last)
        start_scores<D>(s, queries_of<D>(shared, fresh(round) & 1, fresh_group()), next.keys<D>(shared));
      commit_products();
      wait_products<0>();
      state.o.pin_all();
      if (!last) pin(s);

      if (step == 0) {
        const int buffer = (fresh(round) & 1) ^ 1, group = fresh_group();
        if (odd && group == 0 && round > 0) {
          shares_made.wait(round - 1);
          store_odd_query<D>(p, head_of(p, fresh(number) - stride), memory + odd_row<D>(buffer, 0, 0), memory,
                             scale_log2);
          __syncwarp();
          wait_for_warpgroup(0);  // the odd rows and the shares have been read
          if (fresh_thread() == 0) shares_merged.arrive();
        }
        if (more && fresh_thread() % 128 == 0) {
          wait_stores_read();  // of the head before, from the same buffer
          load_queries<D>(p, maps, head_of(p, fresh(number) + stride), buffer, group, shared, odd);
        }
        __syncwarp();
      }
      if (odd && fresh_group() == step) {
        if (round > 0) shares_merged.wait(round - 1);
        share_odd_query<D>(place.keys<D>(shared), place.values<D>(shared),
                           memory + odd_row<D>(fresh(round) & 1, step, 0), memory, scale_log2);
        __syncwarp();
        if (fresh_thread() % 32 == 0) shares_made.arrive();
      }
      __syncwarp();
      if (fresh_thread() % 32 == 0) place.free<D>(shared).arrive();
      if (more && fresh_thread() == 0) {
        const Place old = place.before();
        old.free<D>(shared).wait(old.phase);  // phase -1 of the first use counts as over
        load_block<D>(maps, head_of(p, fresh(number) + stride), step, old, shared);
      }
      __syncwarp();
      place = next;
    };
#pragma unroll 1
    for (int step = 0; step + 1 < kSteps; ++step) take_block(std::false_type{}, step);
    take_block(std::true_type{}, kSteps - 1);
    store_queries<D>(state, p, maps, head_of(p, fresh(number)), shared, fresh(round) & 1);
    if (!more && odd && fresh_group() == 0) {
      shares_made.wait(round);
      store_odd_query<D>(p, head_of(p, fresh(number)), memory + odd_row<D>(fresh(round) & 1, 0, 0), memory, scale_log2);
    }
  }
  if (fresh_thread() % 128 == 0) wait_stores_read();
#endif
}

template <int D>
bool launch(const Params& p, const LaunchContext& context) {
  const int blocks = std::min(p.batch * p.heads, context.sm_count);
  const ForwardMaps maps{make_tensor_maps(p.q, p, p.query_tokens), make_tensor_maps(p.k, p, p.query_tokens),
                         make_tensor_maps(p.v, p, p.query_tokens), make_tensor_maps(p.out, p, p.query_tokens)};
  allow_shared_memory(&wgmma_forward_kernel<D>, Layout<D>::Bytes);
  wgmma_forward_kernel<D><<<static_cast<unsigned>(blocks), kThreads, Layout<D>::Bytes, context.stream>>>(p, maps);
  BLIPFT_CUDA_LAUNCHED("wgmma attention forward");
  return true;
}

}  // namespace

bool wgmma_forward(const Params& p, const LaunchContext& context) {
  if (!fits_wgmma(p)) return false;
  switch (p.head_size) {
    case 64: return launch<64>(p, context);
    case 80: return launch<80>(p, context);
    case 88: return launch<88>(p, context);
    case 96: return launch<96>(p, context);
    default: return false;
  }
}

}  // namespace blipft::attention
