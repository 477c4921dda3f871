// The elementary checks from which the argument checks of the ops are built (see ops_check.h).
#pragma once

#include <limits>
#include <string>

#include "blipft/error.h"
#include "blipft/ops.h"

namespace blipft {

inline bool is_compute(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

/// Checks arguments of one op; a failed check throws an Error whose message begins with the op's name.
struct Checker {
  const char* op;

  void fail(const std::string& what) const { throw Error(concat(op, ": ", what)); }
  void require(bool condition, const char* what) const {
    if (!condition) [[unlikely]] fail(what);
  }
  void present(const Tensor& t, const char* name) const {
    if (!t || t.shape.rank < 1) [[unlikely]] fail(concat(name, " is missing"));
  }
  void dtype(const Tensor& t, const char* name, DType expected) const {
    present(t, name);
    if (t.dtype != expected) [[unlikely]]
      fail(concat(name, " has dtype ", dtype_name(t.dtype), ", expected ", dtype_name(expected)));
  }
  /// Requires f32 or bf16, the compute dtypes.
  void floating(const Tensor& t, const char* name) const {
    present(t, name);
    if (!is_compute(t.dtype)) [[unlikely]]
      fail(concat(name, " has dtype ", dtype_name(t.dtype), ", expected f32 or bf16"));
  }
  void present(const MatrixView& view, const char* name) const {
    if (!view || view.shape.rank != 2) [[unlikely]] fail(concat(name, " is missing"));
  }
  /// Requires that the data is aligned to the element size and that rows do not overlap.
  void layout(const MatrixView& view, const char* name) const {
    if (reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(dtype_size(view.dtype)) != 0) [[unlikely]]
      fail(concat(name, " does not start at a multiple of its elements' size"));
    if (!view.contiguous() && view.row_stride < view.cols()) [[unlikely]]
      fail(concat(name, " has row stride ", view.row_stride, ", less than its ", view.cols(), " columns"));
  }
  void dtype(const MatrixView& view, const char* name, DType expected) const {
    present(view, name);
    if (view.dtype != expected) [[unlikely]]
      fail(concat(name, " has dtype ", dtype_name(view.dtype), ", expected ", dtype_name(expected)));
  }
  void floating(const MatrixView& view, const char* name) const {
    present(view, name);
    if (!is_compute(view.dtype)) [[unlikely]]
      fail(concat(name, " has dtype ", dtype_name(view.dtype), ", expected f32 or bf16"));
  }
  void matrix(const MatrixView& view, const char* name, DType expected, int64_t rows, int64_t cols) const {
    dtype(view, name, expected);
    if (view.cols() != cols || view.rows() != rows) [[unlikely]]
      fail(concat(name, " has shape ", view.shape.str(), ", expected ", rows, " rows of ", cols));
    layout(view, name);
  }
  /// Checks a matrix that is added to `out`: it may be `out` itself but must not overlap it otherwise.
  void addend(const MatrixView& view, const char* name, const MatrixView& out) const {
    matrix(view, name, out.dtype, out.rows(), out.cols());
    if (view.data == out.data && view.row_stride != out.row_stride) [[unlikely]]
      fail(concat(name, " starts where the output does, but its row stride is ", view.row_stride, " instead of ",
                  out.row_stride));
  }
  void contiguous(const MatrixView& view, const char* name, const char* why) const {
    if (!view.contiguous()) [[unlikely]]
      fail(concat(name, " has rows of ", view.cols(), " that lie ", view.row_stride, " elements apart, but ", why,
                  " needs them one behind the other"));
  }
  void count(const Tensor& t, const char* name, int64_t n) const {
    if (t.numel() != n) [[unlikely]]
      fail(concat(name, " has shape ", t.shape.str(), ", expected ", n, " elements"));
  }
  void matrix(const Tensor& t, const char* name, int64_t rows, int64_t cols) const {
    if (t.cols() != cols || t.numel() != rows * cols) [[unlikely]]
      fail(concat(name, " has shape ", t.shape.str(), ", expected ", rows, " rows of ", cols));
  }
  void matrix(const Tensor& t, const char* name, DType expected, int64_t rows, int64_t cols) const {
    dtype(t, name, expected);
    matrix(t, name, rows, cols);
  }
  void vector(const Tensor& t, const char* name, DType expected, int64_t n) const {
    dtype(t, name, expected);
    count(t, name, n);
  }
  void gradient(const Tensor& t, const char* name, int64_t n) const {
    floating(t, name);
    count(t, name, n);
  }
  /// Checks a parameter gradient: f32 or the op's compute dtype.
  void parameter_gradient(const Tensor& t, const char* name, DType compute) const {
    present(t, name);
    if (t.dtype != DType::f32 && t.dtype != compute) [[unlikely]]
      fail(concat(name, " has dtype ", dtype_name(t.dtype), ", expected f32 or the compute dtype ",
                  dtype_name(compute)));
  }
  void parameter_gradient(const Tensor& t, const char* name, DType compute, int64_t n) const {
    parameter_gradient(t, name, compute);
    count(t, name, n);
  }
  void dropout(const Dropout& d, int64_t samples, int64_t elements_per_sample) const {
    if (!(d.p >= 0 && d.p < 1)) [[unlikely]] fail(concat("dropout p is ", d.p, ", expected 0 <= p < 1"));
    require(d.scale > 0 && d.scale < std::numeric_limits<float>::infinity(), "dropout: scale is not a positive number");
    if (d.p == 0) return;
    vector(d.sample_keys, "dropout.sample_keys", DType::i64, samples);
    require(elements_per_sample <= kMaxDropoutElements, "dropout: more elements of one sample than 32-bit blocks count");
  }
  /// Checks a packing of `rows` rows in total, with at most `maximum` rows a sample.
  void packing(const Packing& p, int64_t samples, int64_t maximum, int64_t rows) const {
    require(bool(p.starts) == bool(p.padded_rows), "packing.starts and packing.padded_rows come both or not at all");
    if (!p) return;
    vector(p.starts, "packing.starts", DType::i32, samples + 1);
    vector(p.padded_rows, "packing.padded_rows", DType::i32, rows);
    require(samples * maximum < (int64_t{1} << 31), "packing: more rows than 32-bit numbers count");
    if (rows > samples * maximum) [[unlikely]]
      fail(concat(rows, " packed rows are more than ", samples, " samples of at most ", maximum, " have"));
  }
  /// Returns the number of packed samples, for ops without another argument that gives it.
  int64_t samples(const Packing& p) const {
    dtype(p.starts, "packing.starts", DType::i32);
    return p.starts.numel() - 1;
  }
  void dropout_rows(const Dropout& d, int64_t rows, int64_t cols) const {
    if (!(d.p > 0)) return dropout(d, 0, 0);
    if (d.row_numbers) {
      require(!d.packing && d.rows_per_sample > 0, "dropout.row_numbers goes without packing, with rows_per_sample > 0");
      vector(d.row_numbers, "dropout.row_numbers", DType::i32, rows);
      return dropout(d, d.sample_keys.numel(), d.rows_per_sample * cols);
    }
    if (d.packing || d.packing.padded_rows) {
      require(d.rows_per_sample > 0, "dropout.rows_per_sample is not positive");
      packing(d.packing, samples(d.packing), d.rows_per_sample, rows);
      return dropout(d, samples(d.packing), d.rows_per_sample * cols);
    }
    if (d.rows_per_sample < 1 || rows % d.rows_per_sample != 0) [[unlikely]]
      fail(concat("dropout.rows_per_sample is ", d.rows_per_sample, ", which does not divide ", rows, " rows"));
    dropout(d, rows / d.rows_per_sample, d.rows_per_sample * cols);
  }
  /// Checks the arguments that all optimizer updates have.
  template <class Update>
  void update(const Update& args) const {
    floating(args.param, "param");
    const int64_t n = args.param.numel();
    if (args.master) vector(args.master, "master", DType::f32, n);
    gradient(args.grad, "grad", n);
    vector(args.scalars, "scalars", DType::f32, kStepScalars);
    if (args.squares) vector(args.squares, "squares", DType::f32, squares_count(n));
    require(!args.rounding.stochastic || (args.param.dtype == DType::bf16 && !args.master),
            "only bf16 without master is rounded stochastically");
  }
  /// Checks the sizes of `n` quantized numbers.
  void quantized(const Quantized& q, const char* name, int64_t n) const {
    const int64_t block = code_block(q.book), together = q.outer ? kScaleBlock : 1;
    const int64_t blocks = (n + block * together - 1) / (block * together) * together;
    vector(q.quantized, concat(name, ".codes").c_str(), DType::u8, blocks * block * code_bits(q.book) / 8);
    vector(q.scales, concat(name, ".scales").c_str(), q.outer ? DType::u8 : DType::f32, blocks);
    require(!q.outer || block == 64, "only scales of blocks of 64 numbers are encoded themselves");
    if (q.outer) vector(q.outer, concat(name, ".outer").c_str(), DType::f32, blocks / kScaleBlock);
  }
  void relative(const RelativeScores& r, int64_t heads) const {
    if (!r) return;
    require(r.behind >= 0 && r.ahead >= 0, "relative: behind or ahead is negative");
    matrix(r.values, "relative.values", DType::f32, heads, r.columns());
  }
  void heads(const Heads& h, const char* name, int64_t count, int64_t size) const {
    if (h.data == nullptr) [[unlikely]] fail(concat(name, " is missing"));
    if (h.row_stride < count * size || h.batch_stride < 0) [[unlikely]]
      fail(concat(name, " has row stride ", h.row_stride, " and batch stride ", h.batch_stride, " for ", count,
                  " heads of ", size));
  }
};

}  // namespace blipft
