// Format: the way in which the elements of a parameter, or of an optimizer state, are stored.
//
// A plain format is a dtype: every op reads it. Other formats store blocks of elements together (quantized values and a
// scale, for example) in one or more planes; they must be decoded before an op uses them, and encoded after it. Blocks
// count from the start of a parameter, independent of the number of ranks. Planes of zero bytes represent zeros.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blipft/ops.h"
#include "blipft/tensor.h"

namespace blipft {

class Format {
 public:
  /// An array that has `per_block` elements of `dtype` for each block.
  struct Plane {
    const char* name;
    DType dtype;
    int64_t per_block;
  };
  virtual ~Format() = default;
  virtual std::string name() const = 0;      ///< "bf16", "nf4": for tables and messages
  virtual int64_t block() const = 0;         ///< elements that are stored together; 1 for plain formats
  virtual std::vector<Plane> planes() const = 0;
  /// Encodes values [n] (f32, bf16 or f16) into the first blocks of the planes; zeros pad a partial last block.
  virtual void encode(Ops& ops, const Tensor& values, const std::vector<Tensor>& planes, Stream stream) const = 0;
  /// Decodes the first blocks of the planes into values [n], f32 or bf16.
  virtual void decode(Ops& ops, const std::vector<Tensor>& planes, const Tensor& values, Stream stream) const = 0;

  /// Returns true if all values of a matrix share one scale, which must be computed from all of them before any is
  /// encoded. The owner of the matrix stores the scale; encode and decode get it as an additional last plane, f32 [1].
  virtual bool scaled() const { return false; }

  bool plain() const;
  int64_t blocks(int64_t elements) const { return (elements + block() - 1) / block(); }
};

/// Returns the plain format of `dtype`: f32, bf16 or f16.
const Format& plain_format(DType dtype);
/// Returns the format with blocks quantized by `book`: planes "codes" and "scales".
const Format& quantized_format(CodeBook book);
/// Returns the format f8e4m3 with one scale for each matrix.
const Format& fp8_format();
/// Returns a format by name: nf4, int8, dynamic8, dynamic8_unsigned, nf4_double and int8_double (which quantize the
/// scales too), fp8, f32, bf16, f16. Throws Error with the known names.
const Format& format_by_name(const std::string& name);

/// Elements in some format: a view, like Tensor.
struct Stored {
  const Format* format = nullptr;
  std::vector<Tensor> planes;                ///< [blocks * per_block] each
  int64_t elements = 0;

  explicit operator bool() const { return format != nullptr; }
  bool plain() const { return format && format->plain(); }
  /// Returns the elements as a tensor [elements]. The format must be plain.
  const Tensor& tensor() const;
  /// Returns `count` elements from `first` on. `first` must be a multiple of the block; `count` must be one too, unless
  /// the part ends with the last element.
  Stored part(int64_t first, int64_t count) const;
  int64_t bytes() const;
  void encode(Ops& ops, const Tensor& values, Stream stream) const { format->encode(ops, values, planes, stream); }
  void decode(Ops& ops, const Tensor& values, Stream stream) const { format->decode(ops, planes, values, stream); }
};

}  // namespace blipft
