// Element access of the CPU ops: parts of tensors are loaded as f32 into small buffers, computed on, and stored in the
// tensor's dtype. Every op is thus written once, in plain float code.
//
// All parallel loops here and in the ops run over independent outputs, and their partition does not depend on the
// number of threads: results have the same bits with any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "blipft/ops.h"
#include "ops/bf16.h"
#include "ops/fp8.h"

namespace blipft::cpu {

/// A buffer that grows but never shrinks; its contents are lost when it grows.
class Scratch {
 public:
  float* floats(int64_t count) {
    if (count > capacity_) {
      memory_.reset(new float[static_cast<size_t>(count)]);
      capacity_ = count;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<float[]> memory_;
  int64_t capacity_ = 0;
};

/// Returns one of the calling thread's buffers. A pointer becomes invalid when its own slot grows.
inline float* thread_buffer(int slot, int64_t count) {
  thread_local Scratch buffers[12];
  return buffers[slot].floats(count);
}

/// Loads elements [first, first + count) of `data` as f32 into `out`.
inline void load(const void* data, DType dtype, int64_t first, int64_t count, float* out) {
  if (dtype == DType::f32) {
    std::copy_n(static_cast<const float*>(data) + first, count, out);
  } else if (is_fp8(dtype)) {
    const uint8_t* in = static_cast<const uint8_t*>(data) + first;
    for (int64_t i = 0; i < count; ++i) out[i] = fp8_to_float(in[i], dtype);
  } else {
    const uint16_t* in = static_cast<const uint16_t*>(data) + first;
    if (dtype == DType::bf16)
      for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_float(in[i]);
    else
      for (int64_t i = 0; i < count; ++i) out[i] = f16_to_float(in[i]);
  }
}

/// Stores f32 values with the given dtype, rounded to nearest even.
inline void store(const float* in, void* data, DType dtype, int64_t first, int64_t count) {
  if (dtype == DType::f32) {
    std::copy_n(in, count, static_cast<float*>(data) + first);
  } else {
    uint16_t* out = static_cast<uint16_t*>(data) + first;
    if (dtype == DType::bf16)
      for (int64_t i = 0; i < count; ++i) out[i] = float_to_bf16(in[i]);
    else
      for (int64_t i = 0; i < count; ++i) out[i] = float_to_f16(in[i]);
  }
}

inline void load(const Tensor& t, int64_t first, int64_t count, float* out) {
  load(t.data, t.dtype, first, count, out);
}
inline void store(const float* in, const Tensor& t, int64_t first, int64_t count) {
  store(in, t.data, t.dtype, first, count);
}

/// load() and store() for one row of a matrix.
inline void load_row(const MatrixView& view, int64_t row, float* out) {
  load(view.data, view.dtype, row * view.row_stride, view.cols(), out);
}
inline void store_row(const float* in, const MatrixView& view, int64_t row) {
  store(in, view.data, view.dtype, row * view.row_stride, view.cols());
}

/// Rounds f32 values to the precision of store(), as later ops will read them.
inline void round_to(DType dtype, float* values, int64_t count) {
  if (dtype != DType::bf16) return;
  for (int64_t i = 0; i < count; ++i) values[i] = bf16_to_float(float_to_bf16(values[i]));
}

/// Raises `amax`, if given, to the largest magnitude of the stored `x` (Fp8Magnitude).
inline void raise_magnitude(const Tensor& amax, const MatrixView& x) {
  if (!amax) return;
  uint32_t maximum = bits_from_float(*amax.as<float>());
  float* const row = thread_buffer(0, x.cols());
  for (int64_t r = 0; r < x.rows(); ++r) {
    load_row(x, r, row);
    for (int64_t c = 0; c < x.cols(); ++c) maximum = std::max(maximum, bits_from_float(row[c]) & 0x7fffffffu);
  }
  *amax.as<float>() = float_from_bits(maximum);
}

/// Stores a parameter gradient: t = values, or t += values (added in f32). Overwrites `values`.
inline void store_gradient(float* values, const Tensor& t, int64_t first, int64_t count, bool accumulate) {
  constexpr int64_t kPiece = 256;
  for (int64_t i = 0; accumulate && i < count; i += kPiece) {
    float old[kPiece];
    const int64_t n = std::min(kPiece, count - i);
    load(t, first + i, n, old);
    for (int64_t j = 0; j < n; ++j) values[i + j] += old[j];
  }
  store(values, t, first, count);
}

constexpr int64_t kChunk = 4096;   ///< elements of a chunk of element-wise work
constexpr int64_t kColumns = 256;  ///< columns of a chunk of a column sum

/// Calls f(first, count) for chunks of [0, n), in parallel.
template <class F>
void for_chunks(int64_t n, F f) {
#pragma omp parallel for schedule(static)
  for (int64_t first = 0; first < n; first += kChunk) f(first, std::min(kChunk, n - first));
}

/// Calls f(i) for i in [0, n), in parallel.
template <class F>
void for_each(int64_t n, F f) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; ++i) f(i);
}

/// Calls f(first column, columns) for chunks of n columns, in parallel.
template <class F>
void for_columns(int64_t n, F f) {
#pragma omp parallel for schedule(static)
  for (int64_t first = 0; first < n; first += kColumns) f(first, std::min(kColumns, n - first));
}

/// Returns the sum of f(x[i]) in f64.
template <class F>
double sum_of(const float* x, int64_t n, F f) {
  double total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < n; ++i) total += f(static_cast<double>(x[i]));
  return total;
}
inline double square(double x) { return x * x; }

inline float dot(const float* a, const float* b, int64_t n) {
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < n; ++i) total += a[i] * b[i];
  return total;
}

/// y += factor * x
inline void add_scaled(float* y, float factor, const float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

/// A row of a matrix as row `row` of sample `sample`.
struct SampleRow {
  int64_t sample, row;
};

/// Locates row r of a matrix whose samples have `maximum` rows each or, if packed, at most `maximum` rows.
inline SampleRow sample_row(const Packing& packing, int64_t r, int64_t maximum) {
  const int64_t padded = packing ? packing.padded_rows.as<const int32_t>()[r] : r;
  return {padded / maximum, padded % maximum};
}

/// Returns the matrix row at which sample b starts; for b = number of samples, the end.
inline int64_t first_row(const Packing& packing, int64_t b, int64_t maximum) {
  return packing ? packing.starts.as<const int32_t>()[b] : b * maximum;
}

/// Returns the number of rows of sample b.
inline int64_t rows_of(const Packing& packing, int64_t b, int64_t maximum) {
  return first_row(packing, b + 1, maximum) - first_row(packing, b, maximum);
}

/// Throws if `packing` is given and its values contradict its documentation; `maximum` is the maximum of a sample's rows.
void check_packing(const Packing& packing, int64_t maximum);

/// values[i] = keep(element first + i of sample `sample`) ? scale values[i] / (1 - p) : 0
void apply_dropout(const Dropout& dropout, int64_t sample, int64_t first, int64_t count, float* values);

/// Applies dropout to row `row` of a matrix with `cols` columns.
inline void apply_dropout_row(const Dropout& dropout, int64_t row, int64_t cols, float* values) {
  if (dropout.row_numbers) row = dropout.row_numbers.as<const int32_t>()[row];
  const auto [sample, sample_r] = sample_row(dropout.packing, row, dropout.rows_per_sample);
  apply_dropout(dropout, sample, sample_r * cols, cols, values);
}

/// Applies act(x), or multiplies `gradient` by act'(x). `saved` is x; for relu it may be any values with the output's
/// sign.
void activate_values(Activation activation, float* values, int64_t count);
void activation_gradient(Activation activation, const float* saved, float* gradient, int64_t count);

/// Sets values[i] to 1 if bit first + i of the output of pack_signs() is set, else to 0.
void unpack_signs(const Tensor& signs, int64_t first, int64_t count, float* values);

/// Returns the tensor's values as f32: its own memory, or a converted copy in `scratch`.
const float* as_floats(const Tensor& t, Scratch& scratch);

/// A matrix's rows as f32: the matrix's own memory, or a converted copy in `scratch`.
struct FloatRows {
  const float* data;
  int64_t stride;      ///< elements between rows
};
FloatRows as_floats(const MatrixView& view, Scratch& scratch);

/// out[c] (+)= sum over rows of matrix[r, c]; matrix f32 [rows, cols].
void column_sums(const FloatRows& matrix, int64_t rows, const Tensor& out, bool accumulate);
inline void column_sums(const float* matrix, int64_t rows, const Tensor& out, bool accumulate) {
  column_sums({matrix, out.numel()}, rows, out, accumulate);
}

}  // namespace blipft::cpu
