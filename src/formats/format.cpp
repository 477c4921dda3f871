// Implements plain formats, and parts of stored elements.
#include "blipft/format.h"

namespace blipft {

namespace {

class PlainFormat final : public Format {
 public:
  explicit PlainFormat(DType dtype) : dtype_(dtype) {}
  std::string name() const override { return dtype_name(dtype_); }
  int64_t block() const override { return 1; }
  std::vector<Plane> planes() const override { return {{"values", dtype_, 1}}; }
  void encode(Ops& ops, const Tensor& values, const std::vector<Tensor>& planes, Stream stream) const override {
    ops.cast(values, planes.at(0).part(0, values.shape), stream);
  }
  void decode(Ops& ops, const std::vector<Tensor>& planes, const Tensor& values, Stream stream) const override {
    ops.cast(planes.at(0).part(0, values.shape), values, stream);
  }

 private:
  DType dtype_;
};

}  // namespace

bool Format::plain() const {
  const std::vector<Plane> all = planes();
  return !scaled() && block() == 1 && all.size() == 1 && all[0].per_block == 1;
}

const Format& plain_format(DType dtype) {
  static const PlainFormat f32(DType::f32), bf16(DType::bf16), f16(DType::f16);
  switch (dtype) {
    case DType::f32: return f32;
    case DType::bf16: return bf16;
    case DType::f16: return f16;
    default: throw Error(concat("there is no format of dtype ", dtype_name(dtype)));
  }
}

const Tensor& Stored::tensor() const {
  BLIPFT_CHECK(plain(), "elements stored as ", format ? format->name() : "nothing", " are no tensor");
  return planes[0];
}

Stored Stored::part(int64_t first, int64_t count) const {
  const int64_t block = format->block();
  BLIPFT_CHECK(first >= 0 && first + count <= elements && first % block == 0 &&
                   (count % block == 0 || first + count == elements),
               "a part of ", count, " elements at ", first, " of ", elements, " stored in blocks of ", block);
  Stored result{format, {}, count};
  const std::vector<Format::Plane> all = format->planes();
  for (size_t i = 0; i < all.size(); ++i)
    result.planes.push_back(
        planes[i].part(first / block * all[i].per_block, {format->blocks(count) * all[i].per_block}));
  return result;
}

int64_t Stored::bytes() const {
  int64_t sum = 0;
  for (const Tensor& plane : planes) sum += plane.bytes();
  return sum;
}

}  // namespace blipft
