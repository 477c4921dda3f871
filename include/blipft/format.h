// Format: how the elements of a parameter, or of an optimizer's state, are stored.
//
// A plain format is a dtype: every op reads it. Others store blocks of elements together (codes and a scale, say) in
// one or more planes; they are decoded before they are computed with and encoded after it. Blocks count from the start
// of a parameter, whatever the number of ranks. Planes of zero bytes stand for zeros.
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
  /// values [n], f32, bf16 or f16, into the first planes' blocks; the last block may be cut, its rest counts as zeros.
  virtual void encode(Ops& ops, const Tensor& values, const std::vector<Tensor>& planes, Stream stream) const = 0;
  /// The other way, into values [n], f32 or bf16.
  virtual void decode(Ops& ops, const std::vector<Tensor>& planes, const Tensor& values, Stream stream) const = 0;

  /// Whether the numbers of a matrix share a scale, which is taken from all of them before any is encoded. Whoever holds the
  /// matrix holds it beside the planes; encode and decode get it behind these, f32 [1].
  virtual bool scaled() const { return false; }

  bool plain() const;
  int64_t blocks(int64_t elements) const { return (elements + block() - 1) / block(); }
};

/// The format that is `dtype` itself.
const Format& plain_format(DType dtype);
/// The format of blocks of codes of `book`: planes "codes" and "scales".
const Format& quantized_format(CodeBook book);
/// The format of f8e4m3 with a scale for each matrix.
const Format& fp8_format();
/// By name: nf4, int8, dynamic8, dynamic8_unsigned, nf4_double and int8_double (whose scales are codes too), fp8, f32, bf16,
/// f16. Throws Error naming the known ones.
const Format& format_by_name(const std::string& name);

/// Elements in some format: a view, as Tensor is.
struct Stored {
  const Format* format = nullptr;
  std::vector<Tensor> planes;                ///< [blocks * per_block] each
  int64_t elements = 0;

  explicit operator bool() const { return format != nullptr; }
  bool plain() const { return format && format->plain(); }
  /// A plain one as what it is: [elements].
  const Tensor& tensor() const;
  /// `count` elements from `first` on. `first` is a multiple of the block; so is `count`, or the part ends where this
  /// ends.
  Stored part(int64_t first, int64_t count) const;
  int64_t bytes() const;
  void encode(Ops& ops, const Tensor& values, Stream stream) const { format->encode(ops, values, planes, stream); }
  void decode(Ops& ops, const Tensor& values, Stream stream) const { format->decode(ops, planes, values, stream); }
};

}  // namespace blipft
