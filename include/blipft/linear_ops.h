// What the ops of linear layers are given: matrix products with what is fused into them, and their factors in fp8.
#pragma once

#include <cstdint>

#include "blipft/tensor.h"

namespace blipft {

enum class Activation { none, relu, gelu };  // gelu is the exact (erf) form

/// A factor of a product in fp8, one scale for all of it: value = codes * scale[0].
struct Fp8Matrix {
  Tensor codes;                 ///< f8e4m3 or f8e5m2 [rows, cols]
  Tensor scale;                 ///< f32 [1], at a multiple of 16 bytes, as cuBLASLt wants it
  explicit operator bool() const { return static_cast<bool>(codes); }
};
/// Products in fp8 run over a multiple of so many elements, and the ops take sizes that are.
constexpr int64_t kFp8Alignment = 16;
/// Columns of the transpose of a matrix of `rows` rows: those behind hold zeros.
constexpr int64_t fp8_columns(int64_t rows) { return (rows + kFp8Alignment - 1) / kFp8Alignment * kFp8Alignment; }

/// What a cast does with Fp8Cast::amax, which is the largest |x|, NaN or infinite where one is not finite. "Raised to" here and
/// in other ops: the greater of what is there, zero at first, and what is found, with infinities and NaNs above all; the order
/// of several changes nothing.
enum class Fp8Magnitude {
  found,              ///< out
  raised,             ///< in and out: raised to it, and the scale is that of the result
  given,              ///< in: x is not read for it
};

/// codes = x / scale, rounded to nearest even, where scale is the least power of two with which the largest |x| is no
/// more than the largest code: 448 for f8e4m3, 57344 for f8e5m2; 1 where x is all zeros. A power of two changes no digit,
/// so that x is rounded once, and every backend has the same bits. Where an element of x is not finite, scale is NaN: so
/// is then whatever is multiplied with it.
struct Fp8Cast {
  MatrixView x;                 ///< f32 or bf16 [M, N], N a multiple of kFp8Alignment
  Tensor amax;                  ///< f32 [1], as `magnitude` says
  Tensor scale;                 ///< f32 [1], out
  Tensor codes;                 ///< [M, N], out, optional
  Tensor transposed;            ///< [N, fp8_columns(M)], out, optional; of the same dtype as codes
  /// What several casts found, which they add to what is there. Whole numbers alone: their order changes nothing.
  Tensor largest;               ///< f32 [1], in and out, optional: the greatest amax, with infinities and NaNs above all
  Tensor counts;                ///< i64 [kFp8Counts], in and out, optional, with `largest` only: see Fp8Count
  Fp8Magnitude magnitude = Fp8Magnitude::found;
};
/// Of the elements of a matrix that is cast: how many there are; those that are not zero, but whose code is; those that are
/// infinite or no numbers. None is beyond the largest code where all are finite: the scale is chosen so.
enum Fp8Count { kFp8Elements, kFp8Underflows, kFp8NotFinite, kFp8Counts };

/// y = act(scale x w^T + bias) + residual. x, residual and y may be columns of wider matrices (for gelu y may not).
struct LinearForward {
  MatrixView x;                 ///< [M, K]
  Tensor w;                     ///< [N, K]
  float scale = 1;
  Tensor bias;                  ///< [N], optional
  MatrixView residual;          ///< [M, N], optional, may be y itself; only with Activation::none
  Activation activation = Activation::none;
  Tensor pre_activation;        ///< [M, N], out, scale x w^T + bias; required for gelu, absent otherwise
  /// Both or none: the product's factors then, as codes of x and w, which give shapes alone. K and N are multiples of
  /// kFp8Alignment.
  Fp8Matrix x8, w8;             ///< [M, K], [N, K]
  MatrixView y;                 ///< [M, N], out
};

/// dx = (scale dy w + add) * act'(saved), the gradient that reaches the input of a linear layer, carried through the
/// activation that produced that input. dy, add and dx may be columns of wider matrices (with an activation or dbias
/// dx may not).
struct LinearBackwardInput {
  MatrixView dy;                ///< [M, N]
  Tensor w;                     ///< [N, K]
  float scale = 1;
  MatrixView add;               ///< [M, K], optional, may be dx itself
  Activation activation = Activation::none;
  /// relu: the activation's output [M, K], or u8 [ceil(M K / 8)], what pack_signs() made of it; gelu: its input
  /// [M, K] (pre_activation).
  Tensor saved;
  Tensor activated;             ///< [M, K], out, optional, gelu only: act(saved), for the weight gradient
  Tensor dbias;                 ///< [K] parameter gradient, optional: column sums of dx (bias of the layer before)
  bool accumulate_dbias = false;
  Fp8Matrix dy8, wt8;           ///< as LinearForward::x8: [M, N], and the transpose [K, N]
  Tensor amax;                  ///< f32 [1], in and out, optional, with an activation: raised to the largest |dx| (Fp8Magnitude)
  MatrixView dx;                ///< [M, K], out
};

/// dw (+)= dy^T x, dbias (+)= column sums of dy. dy and x may be columns of wider matrices.
struct LinearBackwardWeight {
  MatrixView dy;                ///< [M, N]
  MatrixView x;                 ///< [M, K]; may be absent with xt8
  Tensor dw;                    ///< [N, K] parameter gradient
  Tensor dbias;                 ///< [N] parameter gradient, optional
  bool accumulate = false;
  Fp8Matrix dyt8, xt8;          ///< as LinearForward::x8: the transposes [N, fp8_columns(M)], [K, fp8_columns(M)]
  int64_t inputs() const { return xt8 ? xt8.codes.rows() : x.cols(); }  ///< K
};

}  // namespace blipft
