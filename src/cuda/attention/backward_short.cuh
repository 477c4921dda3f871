// The short attention backward (backward_short.cu): shapes, layout of its shared memory, delta.
#pragma once

#include "cuda/attention/backward.cuh"

namespace blipft::attention::short_backward {

/// Compile-time shape of a kernel and the layout of its shared memory.
template <int D_, int Warps_, int MT_, int KB_, int Split_, int BlocksPerSm_, bool HasTail>
struct Layout {
  static constexpr int D = D_, Warps = Warps_, MT = MT_, KB = KB_, Split = Split_, BlocksPerSm = BlocksPerSm_;
  static constexpr int Threads = Warps * 32, TileRows = 16 * MT, MaxMainRows = Warps * TileRows;
  static constexpr int MaxRows = MaxMainRows + (HasTail ? 16 : 0);
  static constexpr int P = pitch<D>, Columns16 = P / 16;
  // A phase 2 unit processes its columns in Parts rounds of Columns n16 columns, to need fewer accumulators at a time.
  static constexpr int Parts = Split == 1 && D > 64 ? 2 : 1;
  static constexpr int Columns = (Columns16 + Split * Parts - 1) / (Split * Parts);
  static_assert(2 * (KB / 32) * Split == Warps, "phase 2 gives each warp one unit: matrix, 32 keys, part of D");

  int main_rows, tail_rows;  // rows that warps own (a multiple of TileRows); rows of the tail (0..16)
  int main_room, tail_room;  // the same for the longest sample

  /// `maximum`: maximum rows of a sample; the sample has this length unless take() sets another one.
  __host__ __device__ explicit Layout(int maximum) {
    take(maximum);
    main_room = main_rows;
    tail_room = tail_rows;
  }
  /// Sets the length of the sample to `queries` rows.
  __host__ __device__ void take(int queries) {
    tail_rows = HasTail && queries > MaxMainRows ? queries - MaxMainRows : 0;
    main_rows = tail_rows ? MaxMainRows : (queries + TileRows - 1) / TileRows * TileRows;
  }
  __host__ __device__ int query_rows() const { return main_rows + (tail_rows ? 16 : 0); }
  __host__ __device__ int query_room() const { return main_room + (tail_room ? 16 : 0); }
  // Byte offsets of Q, dO [query_room][P]; K, V [KB][P]; P, dS [main_room][KB]; tail P, dS [16][KB]; tail dQ f32 [KB /
  // 16][tail_room][P]; lse, delta f32 [query_room]. With Sums, the column sums of dQ, f32 [main_rows / TileRows][P],
  // and of dO, f32 [dout_groups()][P], reuse the memory of P and dS at the end.
  __host__ __device__ int dout() const { return query_room() * P * 2; }
  __host__ __device__ int k() const { return 2 * dout(); }
  __host__ __device__ int v() const { return k() + KB * P * 2; }
  __host__ __device__ int p() const { return v() + KB * P * 2; }
  __host__ __device__ int ds() const { return p() + main_room * KB * 2; }
  __host__ __device__ int tail_p() const { return ds() + main_room * KB * 2; }
  __host__ __device__ int tail_ds() const { return tail_p() + (tail_room ? 16 * KB * 2 : 0); }
  __host__ __device__ int tail_dq() const { return tail_ds() + (tail_room ? 16 * KB * 2 : 0); }
  __host__ __device__ int lse() const { return tail_dq() + KB / 16 * tail_room * P * 4; }
  __host__ __device__ int delta() const { return lse() + query_room() * 4; }
  __host__ __device__ int bytes() const { return delta() + query_room() * 4; }
  __host__ __device__ int dout_groups() const {
    constexpr int kMax = Threads / (P / 8);
    return main_rows / 2 < kMax ? main_rows / 2 : kMax;
  }
  // The column sums fit for any number of rows: at most (main_rows / TileRows + main_rows / 2) * P * 4 bytes, in 2 *
  // main_rows * KB * 2.
  static_assert((2 + TileRows) * P <= 2 * TileRows * KB, "the column sums of dQ and dO take the place of P and dS");
  // Column sums of dK and dV, [KB / 32][2][P]: separate shared memory, whose address needs no register.
  static constexpr int SumFloats = KB / 32 * 2 * P, SumBytes = (SumFloats * 4 + 1023) / 1024 * 1024;
  static_assert(TileRows * KB * 2 >= P * 4, "a warp's column sums of dQ take the place of its P");
};

/// Returns this block's layout for the length of its sample. Like sample_head, it is called again at each use.
template <class L, class Args>
__device__ __forceinline__ L own_layout(const Args& p) {
  L layout(p.query_tokens);
  if constexpr (Args::kPacked) layout.take(p.queries(sample_head(p).b));
  return layout;
}

/// delta = row sums of dO * O, with half a warp per row and 8 columns per lane. O is loaded, all at once, while the
/// copies of Q and dO are in flight; dO is then read from shared memory.
template <class L>
struct Deltas {
  static constexpr int Groups = L::Threads / 16, Rounds = (L::MaxRows + Groups - 1) / Groups;
  uint4 out[Rounds];

  template <class Args>
  __device__ __forceinline__ void load(const Args& p, int b, int h) {
    const int column = (static_cast<int>(threadIdx.x) & 15) * 8, group = static_cast<int>(threadIdx.x) / 16;
    const bf16* head = head_of<const bf16>(p, p.out, b, h) + column;
    const int existing = p.queries(b);
#pragma unroll
    for (int i = 0; i < Rounds; ++i) {
      const int row = i * Groups + group;
      out[i] = row < existing && column < p.head_size
                   ? load8(head + row * p.out.row_stride, column, p.head_size, p.wide) : uint4{0, 0, 0, 0};
    }
  }
  /// Stores delta of rows [0, rows); the dO tile must have arrived.
  __device__ __forceinline__ void reduce(float* delta, const char* dout, int rows) const {
    const int lane = static_cast<int>(threadIdx.x) & 15, group = static_cast<int>(threadIdx.x) / 16;
#pragma unroll
    for (int i = 0; i < Rounds; ++i) {
      const int row = i * Groups + group;
      float sum = 0;
      if (row < rows && lane < L::P / 8)
        sum = dot8(out[i], *reinterpret_cast<const uint4*>(dout + tile_offset<L::D>(row, lane)));
#pragma unroll
      for (int o = 8; o; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
      if (lane == 0 && row < rows) delta[row] = sum;
    }
  }
};

}  // namespace blipft::attention::short_backward
