// Quantized formats, with a scale for each block or for each matrix, and the table of formats by name.
#include "blipft/format.h"

namespace blipft {

namespace {

class QuantizedFormat final : public Format {
 public:
  /// `doubly`: the scales are quantized too.
  QuantizedFormat(const char* name, CodeBook book, bool doubly = false)
      : name_(name), book_(book), doubly_(doubly), scales_(doubly ? kScaleBlock : 1) {}
  std::string name() const override { return name_; }
  int64_t block() const override { return scales_ * code_block(book_); }
  std::vector<Plane> planes() const override {
    std::vector<Plane> planes = {{"codes", DType::u8, code_bytes()}, {"scales", DType::f32, 1}};
    if (doubly_) planes = {planes[0], {"scales", DType::u8, scales_}, {"outer scales", DType::f32, 1}};
    return planes;
  }
  void encode(Ops& ops, const Tensor& values, const std::vector<Tensor>& planes, Stream stream) const override {
    ops.quantize(values, first_blocks(planes, values.numel()), stream);
  }
  void decode(Ops& ops, const std::vector<Tensor>& planes, const Tensor& values, Stream stream) const override {
    ops.dequantize(first_blocks(planes, values.numel()), values, stream);
  }

 private:
  int64_t code_bytes() const { return block() * code_bits(book_) / 8; }  // bytes of quantized values in a block
  Quantized first_blocks(const std::vector<Tensor>& planes, int64_t elements) const {
    const int64_t count = blocks(elements);
    return {book_, planes.at(0).part(0, {count * code_bytes()}), planes.at(1).part(0, {count * scales_}),
            doubly_ ? planes.at(2).part(0, {count}) : Tensor{}};
  }

  const char* name_;
  CodeBook book_;
  bool doubly_;
  int64_t scales_;                         // number of scales in a block
};

class Fp8Format final : public Format {
 public:
  std::string name() const override { return "fp8"; }
  int64_t block() const override { return 1; }
  std::vector<Plane> planes() const override { return {{"codes", DType::f8e4m3, 1}}; }
  bool scaled() const override { return true; }
  void encode(Ops& ops, const Tensor& values, const std::vector<Tensor>& planes, Stream stream) const override {
    ops.encode_fp8(values, {planes.at(0).part(0, values.shape), planes.at(1)}, stream);
  }
  void decode(Ops& ops, const std::vector<Tensor>& planes, const Tensor& values, Stream stream) const override {
    ops.decode_fp8({planes.at(0).part(0, values.shape), planes.at(1)}, values, stream);
  }
};

const Fp8Format kFp8Format;
const QuantizedFormat kFormats[] = {{"nf4", CodeBook::nf4},
                                    {"int8", CodeBook::int8},
                                    {"dynamic8", CodeBook::dynamic8},
                                    {"dynamic8_unsigned", CodeBook::dynamic8_unsigned}};
const QuantizedFormat kDoubleFormats[] = {{"nf4_double", CodeBook::nf4, true}, {"int8_double", CodeBook::int8, true}};

}  // namespace

const Format& quantized_format(CodeBook book) { return kFormats[static_cast<size_t>(book)]; }

const Format& fp8_format() { return kFp8Format; }

const Format& format_by_name(const std::string& name) {
  std::vector<const Format*> all;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) all.push_back(&plain_format(dtype));
  for (const QuantizedFormat& format : kFormats) all.push_back(&format);
  for (const QuantizedFormat& format : kDoubleFormats) all.push_back(&format);
  all.push_back(&kFp8Format);
  std::string known;
  for (const Format* format : all) {
    if (format->name() == name) return *format;
    known += concat(known.empty() ? "" : ", ", format->name());
  }
  throw Error(concat("there is no format ", name, ", known are ", known));
}

}  // namespace blipft
