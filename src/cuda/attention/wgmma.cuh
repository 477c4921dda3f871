// Building blocks of the attention kernels that use Hopper's warpgroup products (wgmma): tiles, operands, products, and
// copies between tiles and device memory.
//
// A tile of D columns is stored in shared memory as the tensor copy engine (TMA) writes it and wgmma reads it:
//   left   columns 0 to 63, rows of 128 bytes, 128-byte swizzle: chunk c (8 columns) of row r at position c ^ (r & 7)
//   right  columns 64 to 95 with zeros from D on, rows of 64 bytes, 64-byte swizzle: chunk c at position
//          c ^ (r >> 1 & 3); absent if D is 64
// Both parts can be operands in either orientation, so nothing is stored twice: K-major (the columns are contracted, 16
// at a time: steps of 32 bytes) or MN-major (the rows are contracted, 16 at a time: steps of two groups of 8 rows).
// ldmatrix, stmatrix and 16-byte accesses by 8 lanes to one chunk of 8 rows access each bank once.
//
// wgmma and TMA access shared memory through the "async proxy": each thread must make its ordinary stores visible to it
// (publish) before the barrier that precedes the access.
//
// Accumulators of m64nN are C fragments as in mma.cuh; warp w of the warpgroup holds rows 16w to 16w + 15. A operands
// in registers are the A fragments of mma.cuh.
#pragma once

#include <cuda.h>

#include "cuda/attention/mma.cuh"
#include "cuda/attention/params.cuh"

// wgmma exists only for sm_90a. In code for other GPUs the kernels are empty, and LaunchContext::wgmma prevents the
// host from launching them.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BLIPFT_WGMMA_CODE 1
#endif

namespace blipft::attention {

/// A tile of 64 to 96 columns; see the top of this file. `rows` is the tile's number of rows, a multiple of 8; its
/// address is a multiple of 1024.
template <int D>
struct Tile {
  static_assert(D % 8 == 0 && D >= 64 && D <= 96);
  static constexpr bool kHasRight = D > 64;
  static constexpr int kRightColumns = D - 64, kChunks = D / 8, kRowBytes = kHasRight ? 192 : 128;

  static __host__ __device__ constexpr int bytes(int rows) { return rows * kRowBytes; }
  static __device__ __forceinline__ constexpr int right(int rows) { return rows * 128; }
  /// Byte offset of chunk `chunk` of row `row`.
  static __device__ __forceinline__ constexpr uint32_t offset(int rows, int row, int chunk) {
    return static_cast<uint32_t>(!kHasRight || chunk < 8
                                     ? row * 128 + ((chunk ^ (row & 7)) << 4)
                                     : right(rows) + row * 64 + (((chunk - 8) ^ (row >> 1 & 3)) << 4));
  }
};

/// A wgmma operand in shared memory: its descriptor (PTX ISA, wgmma, matrix descriptor).
struct Operand {
  uint32_t low, high;

  /// Returns the operand `bytes` (a multiple of 16) after this one.
  __device__ __forceinline__ uint64_t at(int bytes = 0) const {
    return static_cast<uint64_t>(low + static_cast<uint32_t>(bytes / 16)) | static_cast<uint64_t>(high) << 32;
  }
  /// Operand with rows of 128 (left) or 64 (right) bytes in groups of 8; K-major, or MN-major for up to 64 or 32
  /// columns.
  static __device__ __forceinline__ Operand left(uint32_t address) { return {address >> 4, 1024 >> 4 | 1u << 30}; }
  static __device__ __forceinline__ Operand right(uint32_t address) { return {address >> 4, 512 >> 4 | 2u << 30}; }
  /// Operand of one row, K-major and contiguous at `address`: rows and chunks are 16 bytes apart, without swizzle, so
  /// that row 0 is this row. Other rows are not used: rows 1 to 7 are up to 112 bytes after it, and later rows repeat
  /// these.
  static __device__ __forceinline__ Operand single_row(uint32_t address) { return {address >> 4 | 1u << 16, 0}; }
};
constexpr int kLeftRows16 = 16 * 128, kRightRows16 = 16 * 64;  ///< bytes from 16 rows of a part to the next 16

/// bytes between blocks of 16 rows of a part
__device__ __forceinline__ uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }

/// Returns the index of this thread's warpgroup, uniform over the warp.
__device__ __forceinline__ int warpgroup_number() {
  return static_cast<int>(uniform(static_cast<uint32_t>(fresh_thread() / 128)));
}

/// Makes this thread's earlier stores to shared memory visible to wgmma and TMA (after the next barrier).
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

/// A barrier of this warpgroup.
__device__ __forceinline__ void wait_for_warpgroup(int warpgroup) {
  asm volatile("bar.sync %0, 128;\n" ::"r"(1 + warpgroup) : "memory");
}

/// TMA's view of one operand of attention, [batch][heads][tokens][D], in boxes of 64 tokens: one map per part of a
/// tile.
struct TensorMaps {
  CUtensorMap left, right;
};
struct MapShape {
  int head_size, tokens, heads, samples;
};
/// Throws if the driver does not support tensor maps. Rows, heads and samples must be 16-byte aligned (Params::wide).
TensorMaps make_tensor_maps(const View& view, const MapShape& shape);

#ifdef BLIPFT_WGMMA_CODE

/// Orders earlier register accesses before the products that follow.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
/// Waits until at most N committed groups are in flight.
template <int N>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
}
/// Prevents the compiler from moving accesses to accumulators across this point.
template <int N>
__device__ __forceinline__ void pin(float (&c)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
    asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
}

/// Computes c (64 x N) = or += A B over 16 elements of the contraction. `add` = 0 overwrites c.
///   ss: A, B in shared memory; TransA, TransB: 1 if the operand is MN-major
///   rs: A in registers
template <int N>
struct Wgmma;

// Operand lists: the accumulators of n8 tiles from tile i on, and the text of their operand numbers.
#define BLIPFT_C1(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define BLIPFT_C2(i) BLIPFT_C1(i), BLIPFT_C1(i + 1)
#define BLIPFT_C4(i) BLIPFT_C2(i), BLIPFT_C2(i + 2)
#define BLIPFT_C8(i) BLIPFT_C4(i), BLIPFT_C4(i + 4)
#define BLIPFT_R4 "%0, %1, %2, %3"
#define BLIPFT_R8 BLIPFT_R4 ", %4, %5, %6, %7"
#define BLIPFT_R12 BLIPFT_R8 ", %8, %9, %10, %11"
#define BLIPFT_R16 BLIPFT_R12 ", %12, %13, %14, %15"
#define BLIPFT_R32                                                                                         \
  BLIPFT_R16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BLIPFT_R64                                                                                         \
  BLIPFT_R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49"  \
             ", %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// x0 to x6: operand numbers after those of the accumulators.
#define BLIPFT_WGMMA_SHAPE(N, numbers, x0, x1, x2, x3, x4, x5, x6, ...)                                             \
  template <>                                                                                                       \
  struct Wgmma<N> {                                                                                                 \
    template <int TransA, int TransB>                                                                               \
    static __device__ __forceinline__ void ss(float (&c)[N / 8][4], uint64_t a, uint64_t b, int add) {              \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #x2 ", 0;\n"                                                \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" numbers "}, %" #x0 ", %" #x1        \
                   ", p, 1, 1, %" #x3 ", %" #x4 ";\n}\n"                                                            \
                   : __VA_ARGS__                                                                                    \
                   : "l"(a), "l"(b), "r"(add), "n"(TransA), "n"(TransB));                                           \
    }                                                                                                               \
    template <int TransB>                                                                                           \
    static __device__ __forceinline__ void rs(float (&c)[N / 8][4], const uint32_t (&a)[4], uint64_t b, int add) {  \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #x5 ", 0;\n"                                                \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" numbers "}, {%" #x0 ", %" #x1       \
                   ", %" #x2 ", %" #x3 "}, %" #x4 ", p, 1, 1, %" #x6 ";\n}\n"                                       \
                   : __VA_ARGS__                                                                                    \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TransB));                    \
    }                                                                                                               \
  };

BLIPFT_WGMMA_SHAPE(8, BLIPFT_R4, 4, 5, 6, 7, 8, 9, 10, BLIPFT_C1(0))
BLIPFT_WGMMA_SHAPE(16, BLIPFT_R8, 8, 9, 10, 11, 12, 13, 14, BLIPFT_C2(0))
BLIPFT_WGMMA_SHAPE(24, BLIPFT_R12, 12, 13, 14, 15, 16, 17, 18, BLIPFT_C2(0), BLIPFT_C1(2))
BLIPFT_WGMMA_SHAPE(32, BLIPFT_R16, 16, 17, 18, 19, 20, 21, 22, BLIPFT_C4(0))
BLIPFT_WGMMA_SHAPE(64, BLIPFT_R32, 32, 33, 34, 35, 36, 37, 38, BLIPFT_C4(0), BLIPFT_C4(4))
BLIPFT_WGMMA_SHAPE(128, BLIPFT_R64, 64, 65, 66, 67, 68, 69, 70, BLIPFT_C8(0), BLIPFT_C8(8))

#undef BLIPFT_WGMMA_SHAPE
#undef BLIPFT_C1
#undef BLIPFT_C2
#undef BLIPFT_C4
#undef BLIPFT_C8
#undef BLIPFT_R4
#undef BLIPFT_R8
#undef BLIPFT_R12
#undef BLIPFT_R16
#undef BLIPFT_R32
#undef BLIPFT_R64

/// An accumulator of 64 x D in two parts, like the parts of a tile.
template <int D>
struct RowAccumulator {
  float left[8][4], right[Tile<D>::kHasRight ? Tile<D>::kRightColumns / 8 : 1][4];

  /// Returns the fragment of columns 8n to 8n + 7.
  __device__ __forceinline__ float (&tile(int n))[4] { return n < 8 ? left[n] : right[n < 8 ? 0 : n - 8]; }
  __device__ __forceinline__ const float (&tile(int n) const)[4] { return n < 8 ? left[n] : right[n < 8 ? 0 : n - 8]; }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) tile(n)[e] = 0;
  }
  /// Adds A B for 16 rows of the tile at the operands' addresses, with A in registers, asynchronously. `step`: index of
  /// the 16 rows, known at compile time.
  __device__ __forceinline__ void add(const uint32_t (&a)[4], const Operand& rows_left, const Operand& rows_right,
                                      int step) {
    Wgmma<64>::rs<1>(left, a, rows_left.at(step * kLeftRows16), 1);
    if constexpr (Tile<D>::kHasRight)
      Wgmma<Tile<D>::kRightColumns>::template rs<1>(right, a, rows_right.at(step * kRightRows16), 1);
  }
  __device__ __forceinline__ void pin_all() {
    pin(left);
    if constexpr (Tile<D>::kHasRight) pin(right);
  }
};

/// Computes, asynchronously, c = A B^T for the 64 rows of a tile at `a` (left part) and a_right, and the 8 * N rows of
/// a tile at `b` and b_right.
template <int D, int N>
__device__ __forceinline__ void multiply_transposed(float (&c)[N][4], uint32_t a, uint32_t a_right, uint32_t b,
                                                    uint32_t b_right) {
#pragma unroll
  for (int k = 0; k < 4; ++k)
    Wgmma<8 * N>::template ss<0, 0>(c, Operand::left(a).at(32 * k), Operand::left(b).at(32 * k), k > 0);
#pragma unroll
  for (int k = 0; k < (Tile<D>::kRightColumns + 15) / 16; ++k)
    Wgmma<8 * N>::template ss<0, 0>(c, Operand::right(a_right).at(32 * k), Operand::right(b_right).at(32 * k), 1);
}
/// Like multiply_transposed with one contiguous row as B, D columns and zeros up to a multiple of 16: column 0 of c.
template <int D>
__device__ __forceinline__ void multiply_row(float (&c)[1][4], uint32_t a, uint32_t a_right, uint32_t row) {
#pragma unroll
  for (int k = 0; k < 4; ++k)
    Wgmma<8>::ss<0, 0>(c, Operand::left(a).at(32 * k), Operand::single_row(row).at(32 * k), k > 0);
#pragma unroll
  for (int k = 0; k < (Tile<D>::kRightColumns + 15) / 16; ++k)
    Wgmma<8>::ss<0, 0>(c, Operand::right(a_right).at(32 * k), Operand::single_row(row).at(128 + 32 * k), 1);
}

/// Barrier for the arrival of TMA's copies in shared memory; one thread announces the number of bytes. Any thread may
/// wait if it is at most one use behind, because only the parity of uses is known.
struct CopyBarrier {
  uint32_t address;  // 8 bytes

  __device__ __forceinline__ void init() const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n" ::"r"(address) : "memory");
  }
  __device__ __forceinline__ void expect(int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(address), "r"(bytes) : "memory");
  }
  /// Waits for the phase-th use of this barrier, counted from 0.
  __device__ __forceinline__ void wait(int phase) const {
    asm volatile(
        "{\n.reg .pred arrived;\nretry:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 arrived, [%0], %1;\n"
        "@!arrived bra retry;\n}\n" ::"r"(address), "r"(phase & 1) : "memory");
  }
};
/// Barrier for arrivals of threads; init() sets the number per use.
struct ThreadBarrier {
  uint32_t address;  // 8 bytes

  __device__ __forceinline__ void init(int threads) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(address), "r"(threads) : "memory");
  }
  __device__ __forceinline__ void arrive() const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(address) : "memory");
  }
  /// Waits for the phase-th use of this barrier, counted from 0.
  __device__ __forceinline__ void wait(int phase) const { CopyBarrier{address}.wait(phase); }
};

/// Arrives once for the whole warp.
__device__ __forceinline__ void arrive_warp(const ThreadBarrier& barrier) {
  __syncwarp();
  if ((fresh_thread() & 31) == 0) barrier.arrive();
}

/// Makes barriers visible to TMA. Call it after init() and before a barrier of the block.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

/// Prefetches tensor maps, so that the first copies do not wait for them. Called by one thread.
__device__ __forceinline__ void prefetch(const TensorMaps& maps) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&maps.left) : "memory");
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&maps.right) : "memory");
}
/// Starts copying 64 tokens of a head, from `token` on, to rows from `row` on of a tile of `rows` rows. Called by one
/// thread.
template <int D>
__device__ __forceinline__ void start_load(const TensorMaps& maps, uint32_t tile, int rows, int row, int token, int h,
                                           int b, const CopyBarrier& barrier) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3, %4, %5}], [%6];\n" ::"r"(tile + static_cast<uint32_t>(row * 128)), "l"(&maps.left),
               "r"(0), "r"(token), "r"(h), "r"(b), "r"(barrier.address) : "memory");
  if constexpr (Tile<D>::kHasRight) {
    const uint32_t right = tile + static_cast<uint32_t>(Tile<D>::right(rows) + row * 64);
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];\n" ::"r"(right), "l"(&maps.right),
                 "r"(64), "r"(token), "r"(h), "r"(b), "r"(barrier.address) : "memory");
  }
}
/// Starts copying `bytes` from a row; both the address and `bytes` are multiples of 16. Called by one thread.
__device__ __forceinline__ void start_row(const bf16* row, uint32_t shared, int bytes, const CopyBarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
                   shared), "l"(row), "r"(bytes), "r"(barrier.address) : "memory");
}
/// Starts copying 64 rows of a part at `shared` to a head's tokens, from `token` on. Called by one thread, after
/// publish() by the writers and a barrier.
template <bool Right>
__device__ __forceinline__ void start_store(const TensorMaps& maps, uint32_t shared, int token, int h, int b) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];\n" ::"l"(
                   Right ? &maps.right : &maps.left),
               "r"(Right ? 64 : 0), "r"(token), "r"(h), "r"(b), "r"(shared) : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
/// Waits until this thread's committed stores have read shared memory.
__device__ __forceinline__ void wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory"); }

/// Stores this warp's 16 rows (from tile row `row0` on) of C fragments, times factor, as bf16 in a part of a tile.
/// RowBytes: 128 for a left part, 64 for a right one. N n8 tiles; an odd last tile is followed by zeros.
template <int RowBytes, int N>
__device__ __forceinline__ void store_part(uint32_t part, int row0, const float (&c)[N][4], float factor) {
  const int lane = static_cast<int>(threadIdx.x) & 31, row = row0 + (lane & 15);
  const int swizzle = RowBytes == 128 ? row & 7 : row >> 1 & 3;
  const uint32_t base = part + static_cast<uint32_t>(row * RowBytes);
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    uint32_t x[4];
    x[0] = pack(c[n][0] * factor, c[n][1] * factor);
    x[1] = pack(c[n][2] * factor, c[n][3] * factor);
    x[2] = n + 1 < N ? pack(c[n + 1 < N ? n + 1 : n][0] * factor, c[n + 1 < N ? n + 1 : n][1] * factor) : 0;
    x[3] = n + 1 < N ? pack(c[n + 1 < N ? n + 1 : n][2] * factor, c[n + 1 < N ? n + 1 : n][3] * factor) : 0;
    stmatrix4(base + static_cast<uint32_t>(((n + (lane >> 4)) ^ swizzle) << 4), x);
  }
}

#endif  // BLIPFT_WGMMA_CODE

}  // namespace blipft::attention
