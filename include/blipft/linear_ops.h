// Arguments of the ops of linear layers: matrix products with fused operations, and casts of their factors to fp8.
#pragma once

#include <cstdint>

#include "blipft/tensor.h"

namespace blipft {

enum class Activation { none, relu, gelu, gelu_tanh };  // gelu is the exact (erf) form, gelu_tanh the tanh approximation
/// True if the derivative is computed from the activation's input.
constexpr bool is_gelu(Activation activation) { return activation == Activation::gelu || activation == Activation::gelu_tanh; }

/// A factor of an fp8 product, with one scale for the whole matrix: value = quantized * scale[0].
struct Fp8Matrix {
  Tensor quantized;                 ///< f8e4m3 or f8e5m2 [rows, cols]
  Tensor scale;                 ///< f32 [1], 16-byte aligned, as cuBLASLt requires
  explicit operator bool() const { return static_cast<bool>(quantized); }
};
/// The summed dimension of an fp8 product is a multiple of this many elements, and so are the sizes that the ops
/// accept.
constexpr int64_t kFp8Alignment = 16;
/// Columns of the transpose of a matrix of `rows` rows, padded to kFp8Alignment; the padding columns hold zeros.
constexpr int64_t fp8_columns(int64_t rows) { return (rows + kFp8Alignment - 1) / kFp8Alignment * kFp8Alignment; }

/// How a cast uses Fp8Cast::amax, the largest |x|, which is NaN or infinite if an element is not finite. "Raised to v",
/// here and in other ops, means the maximum of the stored value (0 at first) and v, where infinities and NaNs count as
/// largest. Its result does not depend on the order of the calls.
enum class Fp8Magnitude {
  found,              ///< out: the cast computes it
  raised,             ///< in and out: raised to the largest |x|; the scale is that of the result
  given,              ///< in: the cast uses the given value and does not search x
};

/// quantized = x / scale, rounded to nearest even. scale is the smallest power of two for which the largest |x| / scale is
/// at most the largest fp8 value (448 for f8e4m3, 57344 for f8e5m2), or 1 if x is all zeros. Division by a power of two
/// is exact, so x is rounded only once and all backends produce the same bits. If an element of x is not finite, scale
/// is NaN, and so are all products with it.
struct Fp8Cast {
  MatrixView x;                 ///< f32 or bf16 [M, N], N a multiple of kFp8Alignment
  Tensor amax;                  ///< f32 [1], as `magnitude` says
  Tensor scale;                 ///< f32 [1], out
  Tensor quantized;                 ///< [M, N], out, optional
  Tensor transposed;            ///< [N, fp8_columns(M)], out, optional; of the dtype of `quantized`
  /// Statistics that several casts accumulate. They are maxima and integer sums, so the order of the casts does not
  /// matter.
  Tensor largest;               ///< f32 [1], in and out, optional: raised to amax
  Tensor counts;                ///< i64 [kFp8Counts], in and out, optional, only with `largest`: see Fp8Count
  Fp8Magnitude magnitude = Fp8Magnitude::found;
};
/// Counts over the elements of the matrices that are cast: all elements; elements that are nonzero but whose code is
/// zero; infinities and NaNs. Finite matrices have no overflow because the scale is chosen from the largest element.
enum Fp8Count { kFp8Elements, kFp8Underflows, kFp8NotFinite, kFp8Counts };

/// y = act(scale x w^T + bias) + residual. x, residual and y may be columns of wider matrices (not y with gelu).
struct LinearForward {
  MatrixView x;                 ///< [M, K]
  Tensor w;                     ///< [N, K]
  float scale = 1;
  Tensor bias;                  ///< [N], optional
  MatrixView residual;          ///< [M, N], optional, may be y itself; only with Activation::none
  Activation activation = Activation::none;
  Tensor pre_activation;        ///< [M, N], out: scale x w^T + bias; required for gelu, absent otherwise
  /// Quantized factors of the product, both or none; if given, x and w only provide the shapes. K and N are multiples
  /// of kFp8Alignment.
  Fp8Matrix x8, w8;             ///< [M, K], [N, K]
  MatrixView y;                 ///< [M, N], out
};

/// dx = (scale dy w + add) * act'(saved): the gradient of a linear layer's input, multiplied by the derivative of the
/// activation that produced this input. dy, add and dx may be columns of wider matrices (not dx with an activation or
/// dbias).
struct LinearBackwardInput {
  MatrixView dy;                ///< [M, N]
  Tensor w;                     ///< [N, K]
  float scale = 1;
  MatrixView add;               ///< [M, K], optional, may be dx itself
  Activation activation = Activation::none;
  /// relu: the activation's output [M, K], or its pack_signs(), u8 [ceil(M K / 8)]; gelu: the activation's input [M, K]
  /// (pre_activation).
  Tensor saved;
  Tensor activated;             ///< [M, K], out, optional, gelu only: act(saved), for the weight gradient
  Tensor dbias;                 ///< [K] parameter gradient, optional: column sums of dx (bias of the preceding layer)
  bool accumulate_dbias = false;
  Fp8Matrix dy8, wt8;           ///< as LinearForward::x8: dy [M, N], and the transpose of w [K, N]
  Tensor amax;                  ///< f32 [1], in and out, optional, with an activation only: raised to the largest |dx|
  MatrixView dx;                ///< [M, K], out
};

/// dw (+)= dy^T x, dbias (+)= column sums of dy. dy and x may be columns of wider matrices.
struct LinearBackwardWeight {
  MatrixView dy;                ///< [M, N]
  MatrixView x;                 ///< [M, K]; may be absent if xt8 is given
  Tensor dw;                    ///< [N, K] parameter gradient
  Tensor dbias;                 ///< [N] parameter gradient, optional
  bool accumulate = false;
  Fp8Matrix dyt8, xt8;          ///< as LinearForward::x8: the transposes [N, fp8_columns(M)], [K, fp8_columns(M)]
  int64_t inputs() const { return xt8 ? xt8.quantized.rows() : x.cols(); }  ///< K
};

}  // namespace blipft
