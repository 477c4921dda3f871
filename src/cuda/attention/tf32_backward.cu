// Attention backward for f32 with TF32 products (see tf32.cuh) and any length: two kernels, no atomics. backward.cuh
// gives the formulas.
//
//   dq:   a block has 64 queries of a (sample, head), 16 per warp; keys in blocks of 32 (16 above head size 64),
//         double-buffered. It computes delta, the row sums of dO * O, for itself and for dkv.
//   dkv:  a block has 64 keys, 16 per warp; queries in blocks of 32 (16), double-buffered. Scores are computed
//         transposed, S^T = K Q^T, so that P^T and dS^T become A fragments of dV += P^T dO and dK += dS^T Q without
//         leaving registers.
// At head size 64 each needs 68 KB of shared memory, dq 160 and dkv 166 registers: three blocks per multiprocessor. At
// 128: 99 KB, 164 and 212 registers: two. Fragments of a block's own rows are loaded at each use: keeping those of Q
// and dO in registers would cost the third block.
//
// If query heads share keys (on Hopper), a cluster of up to 8 blocks processes 64 keys, each block for a part of the
// heads; finally they add each other's dK and dV through distributed shared memory, in the order of the blocks.
// Example: TinyLlama, 8 packed samples of 130 rows on average, 4 key heads for 32 query heads. Without clusters there
// would be 4 heads * 3 blocks of keys * 8 samples = 96 blocks for 132 multiprocessors, and the first keys of a sample
// of 500 rows would see 8 * 16 blocks of queries in sequence. With clusters of 8 there are 768 blocks (3072 warps for
// 528 schedulers, 3 at a time on each), and at most 16 blocks of queries in sequence.
// For packed samples, blocks beyond the rows or keys of their sample exit at once.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/attention/tf32.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {
namespace {

using namespace tf32;

/// Rows of the other side that a block processes at a time: keys in dq, queries in dkv.
template <int D>
constexpr int kStep = D <= 64 ? 32 : 16;
template <int D>
constexpr int kStepFloats = kStep<D> * kPitch<D>;

/// Blocks per multiprocessor, limited by registers and shared memory.
template <int D, bool Drop>
constexpr int kBlocks = D <= 64 && !Drop ? 3 : 2;

constexpr int kMaxParts = 8;  // maximum cluster size that every GPU with clusters supports

/// Computes delta of this lane's rows g and g + 8, and stores it in memory.
__device__ __forceinline__ void make_deltas(float (&delta)[1][2], const PackedParams& p, int b, int h, int row0) {
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3, rows = p.queries(b);
  const float* out = head_of<const float>(p, p.out, b, h);
  const float* dout = head_of<const float>(p, p.dout, b, h);
  float* deltas = p.delta + (static_cast<int64_t>(b) * p.heads + h) * p.query_tokens;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row0 + 8 * half + g;
    float sum = 0;
    for (int column = 4 * t; row < rows && column < p.head_size; column += 16) {
      const float4 x = *reinterpret_cast<const float4*>(out + row * p.out.row_stride + column);
      const float4 y = *reinterpret_cast<const float4*>(dout + row * p.dout.row_stride + column);
      sum = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, sum))));
    }
    delta[0][half] = quad_sum(sum);
    if (t == 0 && row < rows) deltas[row] = delta[0][half];
  }
}

/// Loads lse (in the exp2 domain) of this lane's rows g and g + 8.
__device__ __forceinline__ void read_lse(float (&lse)[1][2], const PackedParams& p, int b, int h, int row0) {
  const int g = (static_cast<int>(threadIdx.x) & 31) >> 2, rows = p.queries(b);
  const float* from = p.lse + (static_cast<int64_t>(b) * p.heads + h) * p.query_tokens;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row0 + 8 * half + g;
    lse[0][half] = row < rows ? lse_log2(from[row]) : INFINITY;
  }
}

/// Shared memory of dq: Q and dO [kRows]; K and V, two blocks each.
template <int D>
constexpr int kQueryBytes = (2 * kRows * kPitch<D> + 4 * kStepFloats<D>) * 4;

template <int D, bool Drop>
__global__ void __launch_bounds__(kThreads, kBlocks<D, Drop>) dq_kernel(const PackedParams p) {
  constexpr int kKeys = kStep<D>, NT = kKeys / 16;
  extern __shared__ __align__(16) float shared[];
  const int block = p.causal ? static_cast<int>(gridDim.x - 1 - blockIdx.x) : static_cast<int>(blockIdx.x);
  const int q0 = block * kRows, h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int queries = p.queries(b), kv_length = p.kv_length(b);
  if (q0 >= queries) return;
  float *q_tile = shared, *dout_tile = q_tile + kRows * kPitch<D>, *k_tile = dout_tile + kRows * kPitch<D>;
  float* v_tile = k_tile + 2 * kStepFloats<D>;
  const float* k = head_of<const float>(p, p.k, b, p.kv_head(h));
  const float* v = head_of<const float>(p, p.v, b, p.kv_head(h));
  const auto load_block = [&](int j) {
    const int stage = (j & 1) * kStepFloats<D>, key0 = j * kKeys;
    load_rows<D, kKeys>(k_tile + stage, k, p.k.row_stride, key0, kv_length, p.head_size);
    load_rows<D, kKeys>(v_tile + stage, v, p.v.row_stride, key0, kv_length, p.head_size);
    commit_copies();
  };
  load_rows<D, kRows>(q_tile, head_of<const float>(p, p.q, b, h), p.q.row_stride, q0, queries, p.head_size);
  load_rows<D, kRows>(dout_tile, head_of<const float>(p, p.dout, b, h), p.dout.row_stride, q0, queries, p.head_size);
  load_block(0);
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16, row0 = q0 + warp_row;
  float lse[1][2], delta[1][2];
  make_deltas(delta, p, b, h, row0);
  read_lse(lse, p, b, h, row0);
  const DropoutMask mask(p, b);
  const RowTile tile{row0, kv_length, p.causal, p.scale * kLog2e, element_row(p, h, row0), p.query_elements};
  const int blocks = (tile.limit(q0 + kRows - 1) + kKeys - 1) / kKeys;
  const int end = row0 < queries ? tile.limit(row0 + 15) : 0, full = tile.limit(row0);
  wait_copies<0>();
  round_rows<D, kRows>(q_tile);
  round_rows<D, kRows>(dout_tile);
  const SharedRows<D> q(q_tile + warp_row * kPitch<D>), dout(dout_tile + warp_row * kPitch<D>);
  const auto keys = LaneRows<D>::as_b(k_tile), values = LaneRows<D>::as_b(v_tile);
  const float* key_columns = lane_columns<D>(k_tile);
  float dq[1][D / 8][4] = {};
#pragma unroll 1
  for (int j = 0; j < blocks; ++j) {
    const int key0 = j * kKeys, key_row = (j & 1) * kKeys;
    wait_copies<0>();
    round_rows<D, kKeys>(k_tile + key_row * kPitch<D>);
    round_rows<D, kKeys>(v_tile + key_row * kPitch<D>);
    __syncthreads();  // block j has arrived for all threads, the other stage is free
    if (j + 1 < blocks) load_block(j + 1);
    if (key0 >= end) continue;
    float s[1][2 * NT][4], dp[1][2 * NT][4];
    row_products<D>(s, q, keys, key_row);
    row_products<D>(dp, dout, values, key_row);
    if (key0 + kKeys <= full)
      score_gradients<1, NT, false, Drop>(s, dp, lse, delta, key0, tile, mask, p.keep_scale);
    else
      score_gradients<1, NT, true, Drop>(s, dp, lse, delta, key0, tile, mask, p.keep_scale);
    add_products<D>(dq, dp, key_columns, key_row);
  }
  store_products<D>(dq, {p.scale, p.scale}, head_of<float>(p, p.dq, b, h), p.dq.row_stride, row0, queries,
                    p.head_size);
}

/// Shared memory of dkv: K and V [kRows]; Q and dO, two blocks each; lse, then delta, of the queries of both blocks.
template <int D>
constexpr int kKeyBytes = (2 * kRows * kPitch<D> + 4 * kStepFloats<D> + 4 * kStep<D>) * 4;

/// The block of queries that a block of keys processes: rows from `row` on of a head.
struct QueryBlock {
  int head, row;

  /// Returns the next block among rows [first, end) of each head below `heads_end`, one head after the other.
  __device__ __forceinline__ QueryBlock next(int step, int first, int end, int heads_end) const {
    const int after = row + step;
    return after >= end && head + 1 < heads_end ? QueryBlock{head + 1, first} : QueryBlock{head, after};
  }
};

/// Waits for all blocks of the cluster; their earlier writes to shared memory are then visible to all.
__device__ __forceinline__ void cluster_barrier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
#endif
}

/// Loads 16 bytes from the shared memory of block `rank` of the cluster, at the same offset as `own` in this block's.
__device__ __forceinline__ float4 load_cluster(const float* own, int rank) {
  float4 x{};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("{\n.reg .b32 address;\nmapa.shared::cluster.u32 address, %4, %5;\n"
               "ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [address];\n}\n"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(shared_address(own)), "r"(rank)
               : "memory");
#endif
  return x;
}

/// Stores dk and dv of rows [row0, row0 + kRows): the sums over the `parts` blocks of the cluster of their `tiles`,
/// which hold dK [kRows][D], then dV. Each block sums its share of the pieces.
template <int D>
__device__ __forceinline__ void store_sums(const PackedParams& p, const float* tiles, int parts, int part, int b,
                                           int kv_head, int row0) {
  constexpr int kPieces = D / 4;
  const int rows = min(kRows, p.keys(b) - row0);
  float* dk = head_of<float>(p, p.dk, b, kv_head) + row0 * p.dk.row_stride;
  float* dv = head_of<float>(p, p.dv, b, kv_head) + row0 * p.dv.row_stride;
  cluster_barrier();
#pragma unroll 1
  for (int i = part * kThreads + static_cast<int>(threadIdx.x); i < 2 * kRows * kPieces; i += parts * kThreads) {
    const int row = i / kPieces, column = i % kPieces * 4, r = row % kRows;  // rows of dV follow those of dK
    if (r >= rows || column >= p.head_size) continue;
    float4 sum{};
#pragma unroll 4
    for (int rank = 0; rank < parts; ++rank) {
      const float4 x = load_cluster(tiles + row * kPitch<D> + column, rank);
      sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
    }
    float* target = row < kRows ? dk + r * p.dk.row_stride : dv + r * p.dv.row_stride;
    *reinterpret_cast<float4*>(target + column) = sum;
  }
  cluster_barrier();  // the other blocks may still read this block's tiles
}

/// `parts`: blocks of a cluster; each processes an equal share of the heads that use these keys.
// The kernel has 81 lines, half of them addresses: all parts of its loop over two stages need the same variables.
template <int D, bool Drop>
__global__ void __launch_bounds__(kThreads, kBlocks<D, Drop>) dkv_kernel(const PackedParams p, int parts) {
  constexpr int kQueries = kStep<D>, NT = kQueries / 16, kNumbers = 2 * kQueries;
  extern __shared__ __align__(16) float shared[];
  const int part = static_cast<int>(blockIdx.x) % parts, block0 = static_cast<int>(blockIdx.x) / parts * kRows;
  const int kv_head = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  if (block0 >= p.keys(b)) return;  // as do all blocks of the cluster
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16, key_row0 = block0 + warp_row;
  const int queries = p.queries(b), kv_length = p.kv_length(b);
  const int first_head = kv_head * p.group + part * (p.group / parts), heads_end = first_head + p.group / parts;
  float *k_tile = shared, *v_tile = k_tile + kRows * kPitch<D>, *q_tile = v_tile + kRows * kPitch<D>;
  float *dout_tile = q_tile + 2 * kStepFloats<D>, *numbers = dout_tile + 2 * kStepFloats<D>;
  const auto load_block = [&](int stage, const QueryBlock& next) {
    load_rows<D, kQueries>(q_tile + stage * kStepFloats<D>, head_of<const float>(p, p.q, b, next.head), p.q.row_stride,
                           next.row, queries, p.head_size);
    load_rows<D, kQueries>(dout_tile + stage * kStepFloats<D>, head_of<const float>(p, p.dout, b, next.head),
                           p.dout.row_stride, next.row, queries, p.head_size);
    // Queries that do not exist have zeros for Q, dO, lse and delta: P is finite and multiplied by a zero dO, and dS =
    // 0.
    const int i = static_cast<int>(threadIdx.x), row = next.row + i % kQueries;
    if (i < kNumbers) {
      const float* from = (i < kQueries ? p.lse : p.delta) +
                          (static_cast<int64_t>(b) * p.heads + next.head) * p.query_tokens;
      copy4_async(numbers + stage * kNumbers + i, row < queries ? from + row : from, row < queries);
    }
    commit_copies();
  };
  const DropoutMask mask(p, b);
  RowTile tile{0, kv_length, p.causal, p.scale * kLog2e, 0, p.query_elements};
  float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};
  load_rows<D, kRows>(k_tile, head_of<const float>(p, p.k, b, kv_head), p.k.row_stride, block0, kv_length,
                      p.head_size);
  load_rows<D, kRows>(v_tile, head_of<const float>(p, p.v, b, kv_head), p.v.row_stride, block0, kv_length,
                      p.head_size);
  const int first = p.causal ? block0 : 0;            // a multiple of kQueries
  const int end = block0 < kv_length ? queries : first;  // no work for keys that no query may see
  QueryBlock block{first_head, first};
  if (first < end) load_block(0, block);
  else commit_copies();
  wait_copies<0>();  // needed without queries too: rounding requires this thread's copies
  round_rows<D, kRows>(k_tile);
  round_rows<D, kRows>(v_tile);
  const SharedRows<D> keys(k_tile + warp_row * kPitch<D>), values(v_tile + warp_row * kPitch<D>);
  const auto q_rows = LaneRows<D>::as_b(q_tile), dout_rows = LaneRows<D>::as_b(dout_tile);
  const float *q_columns = lane_columns<D>(q_tile), *dout_columns = lane_columns<D>(dout_tile);
  int stage = 0;
#pragma unroll 1
  for (; block.row < end; stage ^= 1) {
    wait_copies<0>();
    round_rows<D, kQueries>(q_tile + stage * kStepFloats<D>);
    round_rows<D, kQueries>(dout_tile + stage * kStepFloats<D>);
    float* lse = numbers + stage * kNumbers;
    if (threadIdx.x < kQueries) lse[threadIdx.x] = lse_log2(lse[threadIdx.x]);
    __syncthreads();  // this stage has arrived for all threads, the other one is free
    const QueryBlock now = block;
    block = now.next(kQueries, first, end, heads_end);
    if (block.row < end) load_block(stage ^ 1, block);
    if (key_row0 >= kv_length || (p.causal && now.row + kQueries <= key_row0)) continue;
    if (Drop) tile.element_row0 = element_row(p, now.head, 0);
    const int row = stage * kQueries;
    float s[1][2 * NT][4], dp[1][2 * NT][4];
    row_products<D>(s, keys, q_rows, row);
    row_products<D>(dp, values, dout_rows, row);
    if (key_row0 + 16 <= tile.limit(now.row))
      transposed_gradients<NT, false, Drop>(s, dp, lse, lse + kQueries, key_row0, now.row, tile, mask, p.keep_scale);
    else
      transposed_gradients<NT, true, Drop>(s, dp, lse, lse + kQueries, key_row0, now.row, tile, mask, p.keep_scale);
    add_products<D>(dv, s, dout_columns, row);
    add_products<D>(dk, dp, q_columns, row);
  }
  if (parts == 1) {
    store_products<D>(dk, {p.scale, p.scale}, head_of<float>(p, p.dk, b, kv_head), p.dk.row_stride, key_row0, p.keys(b),
                      p.head_size);
    store_products<D>(dv, {1.0f, 1.0f}, head_of<float>(p, p.dv, b, kv_head), p.dv.row_stride, key_row0, p.keys(b),
                      p.head_size);
    return;
  }
  __syncthreads();  // K and V are not needed any more
  store_products<D>(dk, {p.scale, p.scale}, k_tile, kPitch<D>, warp_row, kRows, D);
  store_products<D>(dv, {1.0f, 1.0f}, v_tile, kPitch<D>, warp_row, kRows, D);
  store_sums<D>(p, k_tile, parts, part, b, kv_head, block0);
}

/// Returns the number of blocks among which the heads that share keys are divided.
int parts_of(const Params& p) {
  int parts = p.wgmma ? kMaxParts : 1;  // wgmma implies a GPU with clusters
  while (p.group % parts != 0) parts /= 2;
  return parts;
}

template <int D, bool Drop>
void launch_dkv(const PackedParams& p, cudaStream_t stream) {
  const int parts = parts_of(p);
  allow_shared_memory(&dkv_kernel<D, Drop>, kKeyBytes<D>);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(parts);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((p.kv_tokens + kRows - 1) / kRows * parts),
                        static_cast<unsigned>(p.kv_heads), static_cast<unsigned>(p.batch));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kKeyBytes<D>;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = parts > 1 ? 1 : 0;
  BLIPFT_CUDA_CHECK(cudaLaunchKernelEx(&config, &dkv_kernel<D, Drop>, p, parts));
}

template <int D, bool Drop>
bool backward(const Params& params, cudaStream_t stream) {
  const PackedParams p{params};
  if (std::max(kQueryBytes<D>, kKeyBytes<D>) > p.shared_bytes) return false;
  allow_shared_memory(&dq_kernel<D, Drop>, kQueryBytes<D>);
  const dim3 query_blocks(static_cast<unsigned>((p.query_tokens + kRows - 1) / kRows), static_cast<unsigned>(p.heads),
                          static_cast<unsigned>(p.batch));
  dq_kernel<D, Drop><<<query_blocks, kThreads, kQueryBytes<D>, stream>>>(p);  // computes delta
  BLIPFT_CUDA_LAUNCHED("TF32 attention dq");
  launch_dkv<D, Drop>(p, stream);
  return true;
}

}  // namespace

bool tf32_backward(const Params& p, cudaStream_t stream) {
  if (p.dropout) return p.head_size <= 64 ? backward<64, true>(p, stream) : backward<128, true>(p, stream);
  if (p.head_size <= 64) return backward<64, false>(p, stream);
  return p.head_size <= 96 ? backward<96, false>(p, stream) : backward<128, false>(p, stream);
}

}  // namespace blipft::attention
