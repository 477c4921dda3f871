// What the CUDA backend's files share on the host side: where a launch goes, dtype dispatch, grid sizes, and the
// kernels that more than one op uses.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "blipft/decode_ops.h"
#include "cuda/device/cuda_check.h"

namespace blipft {

/// Everything a kernel launch needs besides its arguments.
struct LaunchContext {
  cudaStream_t stream = nullptr;
  int sm_count = 1;
  int shared_bytes = 48 << 10;       ///< shared memory that a block may have on this GPU, if its kernel asks
  bool wgmma = false;                ///< the kernels with warpgroup products are in the code that this GPU runs
  bool tf32 = false;                 ///< products of f32 factors may be in TF32
  float* scratch = nullptr;          ///< this op's own part of the workspace
  int64_t scratch_bytes = 0;
  unsigned* counters = nullptr;      ///< [kCounters], zero between kernels: a kernel that counts resets what it used
};

/// Counters for kernels whose last block to finish adds up what the others left, or whose blocks take tiles from a
/// list.
constexpr int64_t kCounters = 4096;

template <class T>
struct TypeTag {
  using type = T;
};

/// Calls `body` with the C++ type of an f32 or bf16 tensor (check_args has seen that it is one of those).
template <class Body>
void dispatch_float(DType dtype, Body&& body) {
  if (dtype == DType::f32) body(TypeTag<float>{});
  else if (dtype == DType::bf16) body(TypeTag<__nv_bfloat16>{});
  else throw Error(concat("no CUDA kernel for dtype ", dtype_name(dtype)));
}

/// dispatch_float that knows f16 too.
template <class Body>
void dispatch_cast(DType dtype, Body&& body) {
  if (dtype == DType::f16) body(TypeTag<__half>{});
  else dispatch_float(dtype, body);
}

/// Calls `body` with a compile-time true or false.
template <class Body>
void dispatch_bool(bool value, Body&& body) {
  if (value) body(std::true_type{});
  else body(std::false_type{});
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

inline bool aligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }
/// Whether every given tensor starts at a multiple of 16 bytes (absent ones do).
template <class... Tensors>
bool all_aligned16(const Tensors&... tensors) {
  return (aligned16(tensors.data) && ...);
}

/// Sums that lie side by side in rows of partial sums, one row a block of the kernel that made them.
struct PartialSums {
  struct Output {
    void* data;
    bool f32, accumulate;                     ///< else bf16; else written
  };
  const float* partials = nullptr;            ///< [groups, count, cols]
  int64_t groups = 0, cols = 0;
  Output outputs[3]{};
  int count = 0;
  /// The next `cols` columns go to `out`, f32 or bf16 [cols].
  void add(const Tensor& out, bool accumulate) { outputs[count++] = {out.data, out.dtype == DType::f32, accumulate}; }
};
/// out[c] (+)= sum over g of partials[g, c], in the order of g, for each of the outputs.
void launch_reduce_partials(const PartialSums& sums, const LaunchContext& context);
/// out[c] (+)= sum over rows of x[r, c].
void launch_column_sums(const MatrixView& x, const Tensor& out, bool accumulate, const LaunchContext& context);
/// dx *= act'(saved) in place; activated = act(saved) when given; dbias (+)= column sums of the new dx when given.
/// `saved` and `amax` as in LinearBackwardInput.
void launch_activation_backward(const Tensor& dx, const Tensor& saved, const Tensor& activated, Activation activation,
                                const Tensor& dbias, bool accumulate, const Tensor& amax, const LaunchContext& context);
/// y = act(y + bias), in place, with rows of bias.numel() columns.
void launch_bias_activation(const MatrixView& y, const Tensor& bias, Activation activation,
                            const LaunchContext& context);
/// A product of so few rows that a kernel of ours is faster than cuBLASLt. False: it is not one of them, nothing was done.
bool launch_few_rows(const LinearForward& args, const LaunchContext& context);
/// Of a CacheWrite with rotary positions: all of it.
void launch_turn_into_cache(const CacheWrite& args, const LaunchContext& context);
void launch_activate(const Tensor& x, const Tensor& y, Activation activation, const LaunchContext& context);
void launch_add(const Tensor& from, const Tensor& to, const LaunchContext& context);
/// Any finite codes of numbers up to some size: what products are timed with.
void launch_fill_fp8(const Tensor& codes, uint32_t seed, const LaunchContext& context);
void launch_cast(const Tensor& from, const Tensor& to, const LaunchContext& context);
void launch_fill_normal(const Tensor& x, uint64_t seed, uint32_t stream_id, int64_t first, float mean, float std,
                        const LaunchContext& context);
/// rows[i] (+)= sum over b < count of tiled[b * stride_rows + i], i < rows.rows(); `tiled` points at its first row.
void launch_sum_blocks(const void* tiled, DType dtype, int64_t count, int64_t stride_rows, const Tensor& rows,
                       bool accumulate, const LaunchContext& context);

}  // namespace blipft
