// Formats of blocks of codes, and the table of formats by name.
#include "blipft/format.h"

namespace blipft {

namespace {

class QuantizedFormat final : public Format {
 public:
  QuantizedFormat(const char* name, CodeBook book) : name_(name), book_(book) {}
  std::string name() const override { return name_; }
  int64_t block() const override { return code_block(book_); }
  std::vector<Plane> planes() const override {
    return {{"codes", DType::u8, code_block(book_) * code_bits(book_) / 8}, {"scales", DType::f32, 1}};
  }
  void encode(Ops& ops, const Tensor& values, const std::vector<Tensor>& planes, Stream stream) const override {
    ops.quantize(values, first_blocks(planes, values.numel()), stream);
  }
  void decode(Ops& ops, const std::vector<Tensor>& planes, const Tensor& values, Stream stream) const override {
    ops.dequantize(first_blocks(planes, values.numel()), values, stream);
  }

 private:
  Quantized first_blocks(const std::vector<Tensor>& planes, int64_t elements) const {
    const int64_t count = blocks(elements);
    return {book_, planes.at(0).part(0, {count * code_block(book_) * code_bits(book_) / 8}),
            planes.at(1).part(0, {count})};
  }

  const char* name_;
  CodeBook book_;
};

const QuantizedFormat kFormats[] = {{"nf4", CodeBook::nf4},
                                    {"int8", CodeBook::int8},
                                    {"dynamic8", CodeBook::dynamic8},
                                    {"dynamic8_unsigned", CodeBook::dynamic8_unsigned}};

}  // namespace

const Format& quantized_format(CodeBook book) { return kFormats[static_cast<size_t>(book)]; }

const Format& format_by_name(const std::string& name) {
  std::vector<const Format*> all;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) all.push_back(&plain_format(dtype));
  for (const QuantizedFormat& format : kFormats) all.push_back(&format);
  std::string known;
  for (const Format* format : all) {
    if (format->name() == name) return *format;
    known += concat(known.empty() ? "" : ", ", format->name());
  }
  throw Error(concat("there is no format ", name, ", known are ", known));
}

}  // namespace blipft
