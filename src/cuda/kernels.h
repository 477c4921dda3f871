// Host-side helpers of the CUDA backend: launch context, dtype dispatch, grid sizes, and the launch functions of
// kernels that several ops use.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "blipft/decode_ops.h"
#include "cuda/device/cuda_check.h"

namespace blipft {

/// Everything that a kernel launch needs besides its arguments.
struct LaunchContext {
  cudaStream_t stream = nullptr;
  int sm_count = 1;
  int shared_bytes = 48 << 10;       ///< maximum dynamic shared memory of a block on this GPU (opt-in limit)
  bool wgmma = false;                ///< the loaded code for this GPU includes the wgmma kernels
  bool tf32 = false;                 ///< products of f32 factors may use TF32
  float* scratch = nullptr;          ///< this op's part of the workspace
  int64_t scratch_bytes = 0;
  unsigned* counters = nullptr;      ///< [kCounters], zero between kernels: a kernel resets the counters that it uses
};

/// Counters for kernels whose last block reduces the other blocks' results, or whose blocks fetch tiles from a queue.
constexpr int64_t kCounters = 4096;

template <class T>
struct TypeTag {
  using type = T;
};

/// Calls `body` with the C++ type of an f32 or bf16 tensor (check_args() has checked the dtype).
template <class Body>
void dispatch_float(DType dtype, Body&& body) {
  if (dtype == DType::f32) body(TypeTag<float>{});
  else if (dtype == DType::bf16) body(TypeTag<__nv_bfloat16>{});
  else throw Error(concat("no CUDA kernel for dtype ", dtype_name(dtype)));
}

/// Like dispatch_float, but also accepts f16.
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
/// True if every given tensor is 16-byte aligned; absent tensors count as aligned.
template <class... Tensors>
bool all_aligned16(const Tensors&... tensors) {
  return (aligned16(tensors.data) && ...);
}

/// Partial sums for up to three outputs: one row for each block of the kernel that computed them, with the outputs
/// adjacent.
struct PartialSums {
  struct Output {
    void* data;
    bool f32, accumulate;                     ///< f32: else bf16; accumulate: else overwrite
  };
  const float* partials = nullptr;            ///< [groups, count, cols]
  int64_t groups = 0, cols = 0;
  Output outputs[3]{};
  int count = 0;
  /// Assigns the next `cols` columns to `out`, f32 or bf16 [cols].
  void add(const Tensor& out, bool accumulate) { outputs[count++] = {out.data, out.dtype == DType::f32, accumulate}; }
};
/// Computes out[c] (+)= sum over g of partials[g, c], in the order of g, for each output.
void launch_reduce_partials(const PartialSums& sums, const LaunchContext& context);
/// Computes out[c] (+)= sum over rows of x[r, c].
void launch_column_sums(const MatrixView& x, const Tensor& out, bool accumulate, const LaunchContext& context);
/// Computes dx *= act'(saved) in place; activated = act(saved) if given; dbias (+)= column sums of the new dx if given.
/// `saved` and `amax` are as in LinearBackwardInput.
void launch_activation_backward(const Tensor& dx, const Tensor& saved, const Tensor& activated, Activation activation,
                                const Tensor& dbias, bool accumulate, const Tensor& amax, const LaunchContext& context);
/// Computes y = act(y + bias) in place; rows have bias.numel() columns.
void launch_bias_activation(const MatrixView& y, const Tensor& bias, Activation activation,
                            const LaunchContext& context);
/// Computes a product of few rows if our kernel is faster than cuBLASLt for it. Returns false if it did nothing.
bool launch_few_rows(const LinearForward& args, const LaunchContext& context);
/// Runs a CacheWrite with rotary embedding by positions on one axis in one kernel.
void launch_turn_into_cache(const CacheWrite& args, const LaunchContext& context);
void launch_activate(const Tensor& x, const Tensor& y, Activation activation, const LaunchContext& context);
void launch_add(const Tensor& from, const Tensor& to, const LaunchContext& context);
/// Fills `quantized` with finite pseudorandom values of bounded magnitude, for timing matrix products.
void launch_fill_fp8(const Tensor& quantized, uint32_t seed, const LaunchContext& context);
void launch_cast(const Tensor& from, const Tensor& to, const LaunchContext& context);
void launch_fill_normal(const Tensor& x, uint64_t seed, uint32_t stream_id, int64_t first, float mean, float std,
                        const LaunchContext& context);
/// Computes rows[i] (+)= sum over b < count of tiled[b * stride_rows + i] for i < rows.rows(); `tiled` is its first
/// row.
void launch_sum_blocks(const void* tiled, DType dtype, int64_t count, int64_t stride_rows, const Tensor& rows,
                       bool accumulate, const LaunchContext& context);

}  // namespace blipft
