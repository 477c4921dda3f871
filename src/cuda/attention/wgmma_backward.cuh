// Parts of attention backward with warpgroup products (wgmma_backward.cu) other than the products of 256 queries and
// 256 keys: shared memory, delta, the odd token, column sums.
#pragma once

#include "cuda/attention/backward.cuh"
#include "cuda/attention/column_sums.cuh"
#include "cuda/attention/wgmma.cuh"
#include "cuda/vector.cuh"

namespace blipft::attention::vision_backward {

constexpr int kGroups = 4, kThreads = kGroups * 128, kWarps = kThreads / 32, kQueries = 64 * kGroups;
constexpr int kKeys = 64, kBlocks = kQueries / kKeys;

/// Byte offsets in shared memory.
template <int D>
struct Layout {
  static constexpr int QueryTile = Tile<D>::bytes(kQueries), KeyTile = Tile<D>::bytes(kKeys), Weights = kQueries * 128;
  static constexpr int Q = 0, DOut = QueryTile;                 // [kQueries][D]
  static constexpr int P = 2 * QueryTile, DS = P + Weights;     // [kQueries][kKeys], as left parts
  static constexpr int Stages = DS + Weights, Stage = 2 * KeyTile;  // two stages of K and V [kKeys][D]
  // bf16: the odd token's rows of q, k, v, O and dO with zeros up to pitch<D>.
  static constexpr int OddRow = pitch<D> * 2, OddRows = Stages + 2 * Stage;
  // f32: lse (log2) and delta of all queries [kQueries + 1, padded]; P and dS of all queries with the odd key
  // [kQueries]; P and dS of the odd query with a key block [kKeys], this dS also in bf16. Barriers of the stages.
  static constexpr int Lse = OddRows + 5 * OddRow, Delta = Lse + (kQueries + 8) * 4;
  static constexpr int KeyP = Delta + (kQueries + 8) * 4, KeyDS = KeyP + kQueries * 4;
  static constexpr int QueryP = KeyDS + kQueries * 4, QueryDS = QueryP + kKeys * 4, BfDS = QueryDS + kKeys * 4;
  static constexpr int OddDq = BfDS + kKeys * 2;  // f32 [D]: dQ of the odd query
  static constexpr int Barriers = OddDq + D * 4;
  static constexpr int WeightsMade = Barriers + 16, WeightsRead = WeightsMade + 8;  // see weights_made()
  static constexpr int Bytes = WeightsRead + 8;
  // Used at the end, f32: each warp's share of the odd key's dV and dK [2][kWarps][D]; column sums of dQ and of dO
  // [2][kWarps][D]. dQ is stored through the memory of P and dS.
  static constexpr int OddKeySums = Stages, DqSums = OddKeySums + 2 * kWarps * D * 4;
  static constexpr int DOutSums = DqSums + kWarps * D * 4;
  static_assert(Bytes <= 227 << 10, "one block an SM");
  static_assert(QueryTile % 1024 == 0 && Weights % 1024 == 0 && KeyTile % 1024 == 0, "where swizzles begin");
  static_assert(OddRow % 16 == 0 && OddRows % 16 == 0 && BfDS % 16 == 0 && Barriers % 8 == 0);
  static_assert(DOutSums + kWarps * D * 4 <= Stages + Stage, "sums take the place of the first stage");
  static_assert(QueryTile <= 2 * Weights, "at the end dQ takes the place of P and dS");
};

#ifdef BLIPFT_WGMMA_CODE

enum OddRow { kOddQ, kOddK, kOddV, kOddOut, kOddDOut, kOddRows };

__device__ __forceinline__ float* floats(char* memory, int offset) { return reinterpret_cast<float*>(memory + offset); }

template <int D>
__device__ __forceinline__ bf16* odd_row(char* memory, OddRow row) {
  return reinterpret_cast<bf16*>(memory + Layout<D>::OddRows + row * Layout<D>::OddRow);
}

/// The work of the block.
struct Task {
  int b, h;
  bool odd;  // true if there is a token after the first kQueries
  float scale_log2;
};

/// Addresses of a warpgroup's operands, recomputed at each use because registers are scarce.
template <int D>
struct Addresses {
  using L = Layout<D>;
  static __device__ __forceinline__ uint32_t warpgroup() {
    return uniform(static_cast<uint32_t>(fresh_thread() / 128));
  }
  /// Returns the address of the warpgroup's rows of Q or dO (`tile`: L::Q or L::DOut); left part, right part.
  static __device__ __forceinline__ uint32_t rows(uint32_t shared, int tile) {
    return shared + static_cast<uint32_t>(tile) + warpgroup() * (64 * 128);
  }
  static __device__ __forceinline__ uint32_t rows_right(uint32_t shared, int tile) {
    return shared + static_cast<uint32_t>(tile + Tile<D>::right(kQueries)) + warpgroup() * (64 * 64);
  }
  /// Returns the address of a key block's K; its V follows.
  static __device__ __forceinline__ uint32_t keys(uint32_t shared, int block) {
    return uniform(shared + static_cast<uint32_t>(L::Stages + (block & 1) * L::Stage));
  }
};

/// This lane's share of O without the odd token: 4 lanes per row, 8 rows per warp at a time.
template <int D>
struct OutRows {
  static constexpr int kRounds = kQueries / (kWarps * 8), kChunks = (D / 8 + 3) / 4;
  uint4 chunks[kRounds][kChunks];

  static __device__ __forceinline__ int row(int round) {
    return (round * kWarps + fresh_thread() / 32) * 8 + (fresh_thread() & 7);
  }
  static __device__ __forceinline__ int chunk(int i) { return 4 * i + (fresh_thread() >> 3 & 3); }
};
/// Starts loading O. If a row has no such chunk, its last chunk is loaded instead; dO is zero there.
template <int D>
__device__ __forceinline__ OutRows<D> load_out(const Params& p, const Task& task) {
  using Rows = OutRows<D>;
  const bf16* out = p.out.head<const bf16>(task.b, task.h, D);
  Rows rows;
#pragma unroll
  for (int round = 0; round < Rows::kRounds; ++round)
#pragma unroll
    for (int i = 0; i < Rows::kChunks; ++i)
      rows.chunks[round][i] = *reinterpret_cast<const uint4*>(out + Rows::row(round) * p.out.row_stride +
                                                              min(Rows::chunk(i), D / 8 - 1) * 8);
  return rows;
}

/// Computes delta = rowsum(dO * O), with dO from shared memory. The last warp computes that of the odd query.
template <int D>
__device__ __forceinline__ void make_deltas(const Task& task, const OutRows<D>& rows, char* memory) {
  using L = Layout<D>;
  using Rows = OutRows<D>;
  const int warp = fresh_thread() / 32, lane = fresh_thread() & 31;
#pragma unroll
  for (int round = 0; round < Rows::kRounds; ++round) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Rows::kChunks; ++i)
      sum += dot8(rows.chunks[round][i], *reinterpret_cast<const uint4*>(
                                             memory + L::DOut +
                                             Tile<D>::offset(kQueries, Rows::row(round), Rows::chunk(i))));
    sum += __shfl_xor_sync(0xffffffffu, sum, 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    if (lane < 8) floats(memory, L::Delta)[Rows::row(round)] = sum;
  }
  if (!task.odd || warp != kWarps - 1) return;
  const bf16 *out = odd_row<D>(memory, kOddOut), *dout = odd_row<D>(memory, kOddDOut);
  float sum = 0;
  for (int d = lane; d < D; d += 32) sum = fmaf(__bfloat162float(out[d]), __bfloat162float(dout[d]), sum);
  sum = warp_sum(sum);
  if (lane == 0) floats(memory, L::Delta)[kQueries] = sum;
}

/// The odd query and the keys of a block: computes its P and dS, and its dQ += dS K. Called by one warpgroup. In the
/// first products the keys are the rows of A; in the second, the row of dS is row 0 of A, and the other rows are
/// ignored.
template <int D>
__device__ __forceinline__ void take_odd_query(const Task& task, char* memory, int warpgroup, int block) {
  using L = Layout<D>;
  const uint32_t shared = shared_address(memory), odd = shared + static_cast<uint32_t>(L::OddRows);
  const uint32_t k = Addresses<D>::keys(shared, block), v = k + L::KeyTile, k_right = k + Tile<D>::right(kKeys);
  {
    float s[1][4], dp[1][4];
    begin_products();
    multiply_row<D>(s, k, k_right, odd + kOddQ * L::OddRow);
    multiply_row<D>(dp, v, v + Tile<D>::right(kKeys), odd + kOddDOut * L::OddRow);
    commit_products();
    wait_products<0>();
    pin(s);
    pin(dp);
    const int lane = fresh_thread() & 31, key0 = (fresh_thread() >> 5 & 3) * 16 + (lane >> 2);
    const float lse = floats(memory, L::Lse)[kQueries], delta = floats(memory, L::Delta)[kQueries];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = key0 + 8 * half;
      const float p = exp2_approx(fmaf(s[0][2 * half], task.scale_log2, -lse)), ds = p * (dp[0][2 * half] - delta);
      if ((lane & 3) != 0) continue;  // column 0 is the query
      floats(memory, L::QueryP)[key] = p;
      floats(memory, L::QueryDS)[key] = ds;
      reinterpret_cast<bf16*>(memory + L::BfDS)[key] = __float2bfloat16_rn(ds);
    }
  }
  publish();
  wait_for_warpgroup(warpgroup);
  float left[8][4], right[Tile<D>::kRightColumns / 8][4];
  const Operand ds = Operand::single_row(shared + static_cast<uint32_t>(L::BfDS));
  begin_products();
#pragma unroll
  for (int i = 0; i < kKeys / 16; ++i) {
    Wgmma<64>::ss<0, 1>(left, ds.at(32 * i), Operand::left(k).at(i * kLeftRows16), i > 0);
    Wgmma<Tile<D>::kRightColumns>::template ss<0, 1>(right, ds.at(32 * i), Operand::right(k_right).at(i * kRightRows16),
                                                     i > 0);
  }
  commit_products();
  wait_products<0>();
  pin(left);
  pin(right);
  if ((fresh_thread() & 127) >= 4) return;
  float2* sum = reinterpret_cast<float2*>(floats(memory, L::OddDq)) + (fresh_thread() & 3);
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    const float(&c)[4] = n < 8 ? left[n < 8 ? n : 0] : right[n < 8 ? 0 : n - 8];
    const float2 old = block > 0 ? sum[4 * n] : float2{0, 0};
    sum[4 * n] = make_float2(old.x + c[0], old.y + c[1]);
  }
}

/// Phase 1 of the odd key: computes its P and dS with this warpgroup's queries, and dq += dS k.
template <int D>
__device__ __forceinline__ void phase1_odd_key(RowAccumulator<D>& dq, const Task& task, char* memory) {
  using L = Layout<D>;
  using A = Addresses<D>;
  const int lane = fresh_thread() & 31, g = lane >> 2, t = lane & 3, row0 = fresh_thread() / 32 * 16;
  const uint32_t shared = shared_address(memory), odd = shared + static_cast<uint32_t>(L::OddRows);
  float s[1][4], dp[1][4];
  begin_products();
  multiply_row<D>(s, A::rows(shared, L::Q), A::rows_right(shared, L::Q), odd + kOddK * L::OddRow);
  multiply_row<D>(dp, A::rows(shared, L::DOut), A::rows_right(shared, L::DOut), odd + kOddV * L::OddRow);
  commit_products();
  wait_products<0>();
  pin(s);
  pin(dp);
  float ds[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row0 + 8 * half + g;
    const float probability = exp2_approx(fmaf(s[0][2 * half], task.scale_log2, -floats(memory, L::Lse)[row]));
    ds[half] = probability * (dp[0][2 * half] - floats(memory, L::Delta)[row]);
    if (t == 0) {  // column 0 is the key
      floats(memory, L::KeyP)[row] = probability;
      floats(memory, L::KeyDS)[row] = ds[half];
    }
    ds[half] = __shfl_sync(0xffffffffu, ds[half], lane & 28);
  }
  const uint32_t* key = reinterpret_cast<const uint32_t*>(odd_row<D>(memory, kOddK)) + t;
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    const float2 x = unpack(key[4 * n]);
    float(&c)[4] = dq.tile(n);
    c[0] = fmaf(ds[0], x.x, c[0]);
    c[1] = fmaf(ds[0], x.y, c[1]);
    c[2] = fmaf(ds[1], x.x, c[2]);
    c[3] = fmaf(ds[1], x.y, c[3]);
  }
}

/// Adds the odd query's share to N n8 tiles of dV or dK. `row`: the vector that is multiplied by its weights, from the
/// first column on.
template <int N>
__device__ __forceinline__ void add_odd_rows(float (&acc)[N][4], const float* weights, const bf16* row) {
  const int lane = fresh_thread() & 31, first = (fresh_thread() >> 5 & 3) * 16 + (lane >> 2);
  const float weight0 = weights[first], weight1 = weights[first + 8];
  const uint32_t* source = reinterpret_cast<const uint32_t*>(row) + (lane & 3);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float2 x = unpack(source[4 * n]);
    acc[n][0] = fmaf(weight0, x.x, acc[n][0]);
    acc[n][1] = fmaf(weight0, x.y, acc[n][1]);
    acc[n][2] = fmaf(weight1, x.x, acc[n][2]);
    acc[n][3] = fmaf(weight1, x.y, acc[n][3]);
  }
}

/// Computes, with mma.sync, this warp's share (of 16 queries) of the odd key's dV (from P and dO) and dK (from dS and
/// Q) in row 0 of the products. With Sums, row 1 of the first product is the column sums of dO.
template <int D, bool Sums>
__device__ __forceinline__ void reduce_odd_key(const Task& task, char* memory) {
  using L = Layout<D>;
  constexpr uint32_t kOnes = 0x3f803f80;
  const int warp = fresh_thread() / 32, lane = fresh_thread() & 31, g = lane >> 2, t = lane & 3, row0 = 16 * warp;
#pragma unroll
  for (int is_dk = 0; is_dk < 2; ++is_dk) {
    if (is_dk && !task.odd) return;
    float* target = floats(memory, L::OddKeySums) + (is_dk * kWarps + warp) * D + 2 * t;
    if (g == 1) target = floats(memory, L::DOutSums) + warp * D + 2 * t;
    const uint32_t rows = shared_address(memory) + static_cast<uint32_t>(is_dk ? L::Q : L::DOut);
    const float2* weights = reinterpret_cast<const float2*>(floats(memory, is_dk ? L::KeyDS : L::KeyP) + row0) + t;
    const uint32_t other = Sums && !is_dk && g == 1 ? kOnes : 0;
    const uint32_t a[4] = {g == 0 ? pack(weights[0].x, weights[0].y) : other, 0u,
                           g == 0 ? pack(weights[4].x, weights[4].y) : other, 0u};
#pragma unroll
    for (int d = 0; d < pitch<D> / 16; ++d) {
      float c[2][4] = {};
      uint32_t b[4];
      ldmatrix4_trans(b, rows + Tile<D>::offset(kQueries, row0 + (lane & 15), 2 * d + (lane >> 4)));
      mma(c[0], a, b[0], b[1]);
      mma(c[1], a, b[2], b[3]);
#pragma unroll
      for (int n = 0; n < 2; ++n)
        if (g <= (Sums && !is_dk ? 1 : 0) && 16 * d + 8 * n < D)
          *reinterpret_cast<float2*>(target + 16 * d + 8 * n) = make_float2(c[n][0], c[n][1]);
    }
  }
}

/// Stores the odd token's rows of dQ, dK and dV: sums over all queries and keys, and the product with itself. Requires
/// a preceding barrier.
template <int D>
__device__ __forceinline__ void store_odd_token(const Params& p, const Task& task, char* memory) {
  using L = Layout<D>;
  const int thread = fresh_thread();
  if (thread >= 3 * 128) return;
  const int matrix = thread / 128, lane = thread & 31;
  const bf16 *q = odd_row<D>(memory, kOddQ), *k = odd_row<D>(memory, kOddK), *v = odd_row<D>(memory, kOddV);
  const bf16* dout = odd_row<D>(memory, kOddDOut);
  float s = 0, dp = 0;  // of the odd query with the odd key; computed by every warp
#pragma unroll
  for (int d = lane; d < pitch<D>; d += 32) {  // zeros from D on
    s = fmaf(__bfloat162float(q[d]), __bfloat162float(k[d]), s);
    dp = fmaf(__bfloat162float(dout[d]), __bfloat162float(v[d]), dp);
  }
#pragma unroll
  for (int o = 16; o; o /= 2) {
    s += __shfl_xor_sync(0xffffffffu, s, o);
    dp += __shfl_xor_sync(0xffffffffu, dp, o);
  }
  const float probability = exp2_approx(fmaf(s, task.scale_log2, -floats(memory, L::Lse)[kQueries]));
  const float ds = probability * (dp - floats(memory, L::Delta)[kQueries]);
  const int column = thread & 127;
  if (column >= D) return;
  float sum;
  if (matrix == 0) {
    sum = (floats(memory, L::OddDq)[column] + ds * __bfloat162float(k[column])) * p.scale;
    floats(memory, L::OddDq)[column] = sum;  // for the column sums
  } else {
    sum = matrix == 1 ? ds * __bfloat162float(q[column]) : probability * __bfloat162float(dout[column]);
    const float* shares = floats(memory, L::OddKeySums) + (matrix == 1 ? kWarps * D : 0) + column;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += shares[w * D];
    if (matrix == 1) sum *= p.scale;
  }
  const View view = matrix == 0 ? p.dq : (matrix == 1 ? p.dk : p.dv);
  view.head<bf16>(task.b, task.h, D)[kQueries * view.row_stride + column] = __float2bfloat16_rn(sum);
}

/// Computes each warp's column sums of its dQ.
template <int D>
__device__ __forceinline__ void sum_columns(const RowAccumulator<D>& dq, const Params& p, char* memory) {
  using L = Layout<D>;
  const int warp = fresh_thread() / 32, lane = fresh_thread() & 31;
  float* target = floats(memory, L::DqSums) + warp * D;
  for (int i = lane; i < D; i += 32) target[i] = 0;
  __syncwarp();
  float2 own[D / 8];
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    const float(&c)[4] = dq.tile(n);
    own[n] = make_float2(c[0] + c[2], c[1] + c[3]);
  }
  add_column_sums(own, p.scale, target, 8, D / 8);
}

/// Stores the block's columns of the sample's row of p.dbias_partials. Requires a preceding barrier.
template <int D>
__device__ __forceinline__ void store_column_sums(const Params& p, const Task& task, char* memory) {
  using L = Layout<D>;
  const int64_t width = static_cast<int64_t>(p.heads) * D;
  float* partials = p.dbias_partials + task.b * 3 * width + task.h * D;
  const int column = fresh_thread() & 127, matrix = fresh_thread() / 128;
  if (column >= D || matrix >= 3) return;
  float sum = 0;
  if (matrix != 1) {
    const float* parts = floats(memory, matrix == 0 ? L::DqSums : L::DOutSums) + column;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += parts[w * D];
    if (task.odd)
      sum += matrix == 0 ? floats(memory, L::OddDq)[column] : __bfloat162float(odd_row<D>(memory, kOddDOut)[column]);
  }
  partials[matrix * width + column] = sum;
}

#endif  // BLIPFT_WGMMA_CODE

}  // namespace blipft::attention::vision_backward
