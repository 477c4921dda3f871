// Tensor: a non-owning, contiguous, row-major view of device or host memory. MatrixView: a matrix with a row stride.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "blipft/error.h"

namespace blipft {

/// f8e4m3 and f8e5m2 are OCP's 8-bit floats (e4m3 has no infinities); they are used only as factors of matrix products.
enum class DType : uint8_t { f32, bf16, f16, i32, i64, u8, f8e4m3, f8e5m2 };

constexpr bool is_fp8(DType dtype) { return dtype == DType::f8e4m3 || dtype == DType::f8e5m2; }

constexpr int64_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::f32: case DType::i32: return 4;
    case DType::bf16: case DType::f16: return 2;
    case DType::i64: return 8;
    case DType::u8: case DType::f8e4m3: case DType::f8e5m2: return 1;
  }
  return 0;
}

constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
    case DType::f8e4m3: return "f8e4m3";
    case DType::f8e5m2: return "f8e5m2";
  }
  return "?";
}

/// Up to four sizes, outermost first.
struct Shape {
  std::array<int64_t, 4> dims{};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) {
    BLIPFT_CHECK(sizes.size() <= 4, "a shape has at most 4 dimensions, got ", sizes.size());
    for (int64_t size : sizes) dims[static_cast<size_t>(rank++)] = size;
  }
  int64_t operator[](int i) const { return dims[static_cast<size_t>(i)]; }
  /// Throws UserError if the product exceeds any real memory: sizes come from files and settings.
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) {
      const int64_t size = dims[static_cast<size_t>(i)];
      if (size > 0 && n > kMaxElements / size) [[unlikely]] refuse();
      n *= size;
    }
    return n;
  }
  bool operator==(const Shape&) const = default;
  std::string str() const {
    std::string text = "[";
    for (int i = 0; i < rank; ++i) text += (i ? ", " : "") + std::to_string((*this)[i]);
    return text + "]";
  }

 private:
  // Small enough that the byte counts of all tensors of a plan can be summed without overflow.
  static constexpr int64_t kMaxElements = int64_t{1} << 46;
  [[noreturn, gnu::noinline]] void refuse() const {
    throw UserError(concat("a tensor of shape ", str(), " is larger than any memory; lower train.batch_size or ",
                           "data.max_text_tokens, or check the sizes in config.json"));
  }
};

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  /// An absent optional argument is a default-constructed Tensor.
  explicit operator bool() const { return data != nullptr; }
  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return numel() * dtype_size(dtype); }
  /// cols() is the size of the last dimension, rows() the product of the others; both are 0 for an absent tensor.
  int64_t cols() const { return shape.rank ? shape[shape.rank - 1] : 0; }
  int64_t rows() const { return cols() ? numel() / cols() : 0; }

  template <class T>
  T* as() const { return static_cast<T*>(data); }

  /// Returns the same memory with another shape of equal size.
  Tensor view(const Shape& other) const {
    BLIPFT_CHECK(other.numel() == numel(), "cannot view ", shape.str(), " as ", other.str());
    return {data, dtype, other};
  }
  /// Returns a tensor of shape `other` that starts `offset` elements into this tensor.
  Tensor part(int64_t offset, const Shape& other) const {
    BLIPFT_CHECK(offset >= 0 && offset + other.numel() <= numel(), "part ", other.str(), " at ", offset,
                 " lies outside of ", shape.str());
    return {static_cast<char*>(data) + offset * dtype_size(dtype), dtype, other};
  }
  /// Returns rows [begin, begin + count) of this tensor viewed as [rows(), cols()].
  Tensor row_range(int64_t begin, int64_t count) const { return part(begin * cols(), {count, cols()}); }
};

/// A row-major matrix whose rows start `row_stride` elements apart: any tensor viewed as [rows(), cols()], or some of
/// its columns. Only arguments of this type may be non-contiguous; Tensor arguments are contiguous.
struct MatrixView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;                             ///< [rows, cols]
  int64_t row_stride = 0;

  MatrixView() = default;
  /// Views the whole tensor; an absent tensor gives an absent view.
  MatrixView(const Tensor& t) : data(t.data), dtype(t.dtype) {
    if (t.shape.rank > 0) shape = {t.rows(), t.cols()}, row_stride = t.cols();
  }

  explicit operator bool() const { return data != nullptr; }
  int64_t rows() const { return shape[0]; }
  int64_t cols() const { return shape[1]; }
  int64_t numel() const { return shape.numel(); }
  bool contiguous() const { return row_stride == cols() || rows() <= 1; }
  template <class T>
  T* as() const { return static_cast<T*>(data); }

  /// Returns columns [begin, begin + count).
  MatrixView columns(int64_t begin, int64_t count) const {
    BLIPFT_CHECK(begin >= 0 && count >= 0 && begin + count <= cols(), "columns ", begin, " to ", begin + count,
                 " lie outside of ", shape.str());
    return moved(begin, rows(), count);
  }
  /// Returns rows [begin, begin + count).
  MatrixView row_range(int64_t begin, int64_t count) const {
    BLIPFT_CHECK(begin >= 0 && count >= 0 && begin + count <= rows(), "rows ", begin, " to ", begin + count,
                 " lie outside of ", shape.str());
    return moved(begin * row_stride, count, cols());
  }
  /// Returns the same memory as a Tensor; the view must be contiguous.
  Tensor tensor() const {
    BLIPFT_CHECK(!*this || contiguous(), "rows of ", cols(), " lie ", row_stride, " elements apart: no tensor");
    return {data, dtype, shape};
  }

 private:
  MatrixView moved(int64_t offset, int64_t rows, int64_t cols) const {
    MatrixView view = *this;
    view.data = static_cast<char*>(data) + offset * dtype_size(dtype);
    view.shape = {rows, cols};
    return view;
  }
};

}  // namespace blipft
