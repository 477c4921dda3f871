// Linear layers: matrix products by cblas_sgemm and plain loops for the fused operations.
#include <cblas.h>

#include <algorithm>

#include "blipft/decode_ops.h"
#include "cpu/cpu_ops.h"
#include "ops/fp8.h"
#include "ops/ops_check.h"

namespace blipft::cpu {
namespace {

struct Matrix {
  const float* data;
  int64_t stride;      ///< elements between stored rows
  bool transposed;     ///< the product uses the transpose of the stored matrix
};

/// Computes c = alpha a b + beta c, with a [m, k] and b [k, n] (after transposition) and c [m, n]. BLAS runs
/// single-threaded on tiles whose borders depend only on the shapes.
void multiply(int64_t m, int64_t n, int64_t k, float alpha, const Matrix& a, const Matrix& b, float beta, float* c) {
  const bool small = m * n < 16 * 128 * 256;
  const int64_t tile_m = small ? 32 : 128, tile_n = small ? 64 : 256;
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t i = 0; i < m; i += tile_m)
    for (int64_t j = 0; j < n; j += tile_n) {
      const float* left = a.data + (a.transposed ? i : i * a.stride);
      const float* right = b.data + (b.transposed ? j * b.stride : j);
      cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans,
                  static_cast<int>(std::min(tile_m, m - i)), static_cast<int>(std::min(tile_n, n - j)),
                  static_cast<int>(k), alpha, left, static_cast<int>(a.stride), right, static_cast<int>(b.stride), beta,
                  c + i * n + j, static_cast<int>(n));
    }
}

// Returns the scale of an fp8 product; 1 for other products.
float scale_of(const Fp8Matrix& a, const Fp8Matrix& b) {
  return a ? a.scale.as<const float>()[0] * b.scale.as<const float>()[0] : 1.0f;
}

// Applies the fused operations to the product [M, N] of a forward: y = act(product + bias) + residual.
void finish_rows(float* product, const LinearForward& args) {
  const int64_t n = args.y.cols();
  for_each(args.y.rows(), [&](int64_t r) {
    float* y = product + r * n;
    float* other = thread_buffer(0, n);
    if (args.bias) {
      load(args.bias, 0, n, other);
      add_scaled(y, 1, other, n);
    }
    if (args.pre_activation) store(y, args.pre_activation, r * n, n);
    activate_values(args.activation, y, n);
    if (args.residual) {
      load_row(args.residual, r, other);
      add_scaled(y, 1, other, n);
    }
    store_row(y, args.y, r);
  });
}

}  // namespace

// With OpenBLAS's own threads the result's bits would depend on their number, and they would compete with OpenMP's
// threads. An OpenMP build of OpenBLAS runs single-threaded inside parallel regions anyway (and would change OpenMP's
// number).
CpuOps::CpuOps() {
  if (openblas_get_parallel() == OPENBLAS_THREAD) openblas_set_num_threads(1);
}

void CpuOps::set_workspace(Tensor workspace) { check_workspace(workspace); }

void CpuOps::linear_forward(const LinearForward& args, Stream) {
  check_args(args);
  const int64_t m = args.x.rows(), k = args.x.cols(), n = args.w.rows();
  const FloatRows x = as_floats(args.x8 ? MatrixView(args.x8.quantized) : args.x, left_);  // [m, k]
  const float* w = as_floats(args.w8 ? args.w8.quantized : args.w, right_);                // [n, k]
  float* product = product_.floats(m * n);
  multiply(m, n, k, args.scale * scale_of(args.x8, args.w8), {x.data, x.stride, false}, {w, k, true}, 0, product);
  finish_rows(product, args);
}

void CpuOps::coded_linear(const CodedLinear& args, Stream stream) {
  check_args(args);
  const int64_t m = args.x.rows(), k = args.x.cols(), n = args.y.cols();
  float* const w = right_.floats(n * k);
  dequantize(args.w, {w, DType::f32, {n, k}}, stream);
  const FloatRows x = as_floats(args.x, left_);
  float* const product = product_.floats(m * n);
  multiply(m, n, k, 1, {x.data, x.stride, false}, {w, k, true}, 0, product);
  finish_rows(product, {.bias = args.bias, .residual = args.residual, .y = args.y});
}

void CpuOps::linear_backward_input(const LinearBackwardInput& args, Stream) {
  check_args(args);
  const int64_t m = args.dy.rows(), n = args.dy.cols(), k = args.w.cols();
  const FloatRows dy = as_floats(args.dy8 ? MatrixView(args.dy8.quantized) : args.dy, left_);  // [m, n]
  const float* stored = as_floats(args.wt8 ? args.wt8.quantized : args.w, right_);             // w [n, k], or wt8 [k, n]
  const Matrix w = args.wt8 ? Matrix{stored, n, true} : Matrix{stored, k, false};
  float* product = product_.floats(m * k);
  multiply(m, k, n, args.scale * scale_of(args.dy8, args.wt8), {dy.data, dy.stride, false}, w, 0, product);
  for_each(m, [&](int64_t r) {
    float* dx = product + r * k;
    float* other = thread_buffer(0, k);
    if (args.add) {
      load_row(args.add, r, other);
      add_scaled(dx, 1, other, k);
    }
    if (args.saved) {
      if (args.saved.dtype == DType::u8) unpack_signs(args.saved, r * k, k, other);
      else load(args.saved, r * k, k, other);
      activation_gradient(args.activation, other, dx, k);
      if (args.activated) {
        activate_values(args.activation, other, k);
        store(other, args.activated, r * k, k);
      }
    }
    store_row(dx, args.dx, r);
  });
  raise_magnitude(args.amax, args.dx);
  if (args.dbias) column_sums(product, m, args.dbias, args.accumulate_dbias);
}

void CpuOps::linear_backward_weight(const LinearBackwardWeight& args, Stream) {
  check_args(args);
  const int64_t m = args.dy.rows(), n = args.dy.cols(), k = args.inputs();
  const bool fp8 = static_cast<bool>(args.dyt8);  // if true, dy and x are transposed
  const FloatRows dy = as_floats(fp8 ? MatrixView(args.dyt8.quantized) : args.dy, left_);  // [m, n]
  const FloatRows x = as_floats(fp8 ? MatrixView(args.xt8.quantized) : args.x, right_);    // [m, k]
  const Matrix left{dy.data, dy.stride, !fp8}, right{x.data, x.stride, fp8};
  const float scale = scale_of(args.dyt8, args.xt8);
  if (args.dw.dtype == DType::f32) {
    multiply(n, k, m, scale, left, right, args.accumulate ? 1.0f : 0.0f, args.dw.as<float>());
  } else {
    float* product = product_.floats(n * k);
    multiply(n, k, m, scale, left, right, 0, product);
    for_each(n, [&](int64_t r) { store_gradient(product + r * k, args.dw, r * k, k, args.accumulate); });
  }
  if (args.dbias) column_sums(fp8 ? as_floats(args.dy, left_) : dy, m, args.dbias, args.accumulate);
}

// Adds to Fp8Cast::counts for a matrix whose cast multiplies it by `factor`.
void count_fp8(const FloatRows& x, int64_t m, int64_t n, float factor, DType dtype, int64_t* counts) {
  int64_t underflows = 0, not_finite = 0;
#pragma omp parallel for reduction(+ : underflows, not_finite)
  for (int64_t r = 0; r < m; ++r)
    for (int64_t c = 0; c < n; ++c) {
      const float value = x.data[r * x.stride + c];
      underflows += value != 0 && (float_to_fp8(value * factor, dtype) & 0x7f) == 0;
      not_finite += (bits_from_float(value) & 0x7fffffffu) >= 0x7f800000u;
    }
  counts[kFp8Elements] += m * n;
  counts[kFp8Underflows] += underflows;
  counts[kFp8NotFinite] += not_finite;
}

void CpuOps::raise_amax(const MatrixView& x, const Tensor& amax, Stream) {
  check_raise_amax(x, amax);
  raise_magnitude(amax, x);
}

void CpuOps::cast_fp8(const Fp8Cast& args, Stream) {
  check_args(args);
  const int64_t m = args.x.rows(), n = args.x.cols();
  const FloatRows x = as_floats(args.x, left_);
  uint32_t largest = args.magnitude == Fp8Magnitude::found ? 0 : bits_from_float(*args.amax.as<float>());
  const int64_t searched = args.magnitude == Fp8Magnitude::given ? 0 : m;
#pragma omp parallel for reduction(max : largest)
  for (int64_t r = 0; r < searched; ++r)
    for (int64_t c = 0; c < n; ++c) largest = std::max(largest, bits_from_float(x.data[r * x.stride + c]) & 0x7fffffffu);
  const DType dtype = args.quantized ? args.quantized.dtype : args.transposed.dtype;
  if (searched > 0 || args.magnitude == Fp8Magnitude::found) *args.amax.as<float>() = float_from_bits(largest);
  *args.scale.as<float>() = fp8_scale(largest, dtype);
  const float factor = power_of_two(fp8_exponent(largest, dtype));
  if (args.largest) {
    const uint32_t before = bits_from_float(*args.largest.as<float>());
    *args.largest.as<float>() = float_from_bits(std::max(before, largest));
  }
  if (args.counts) count_fp8(x, m, n, factor, dtype, args.counts.as<int64_t>());
  auto* const quantized = args.quantized.as<uint8_t>();
  auto* const transposed = args.transposed.as<uint8_t>();
  const int64_t columns = fp8_columns(m);
  for_each(transposed ? columns : m, [&](int64_t r) {
    for (int64_t c = 0; c < n; ++c) {
      const uint8_t code = r < m ? float_to_fp8(x.data[r * x.stride + c] * factor, dtype) : uint8_t{0};
      if (quantized && r < m) quantized[r * n + c] = code;
      if (transposed) transposed[c * columns + r] = code;
    }
  });
}

}  // namespace blipft::cpu

namespace blipft {
std::unique_ptr<Ops> make_cpu_ops() { return std::make_unique<cpu::CpuOps>(); }
}  // namespace blipft
