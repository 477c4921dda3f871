// Formats by name, and what the store asks of every one.
#include "blipft/format.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace blipft {
namespace {

/// Planes of `n` elements, bytes of zeros.
struct Planes {
  Planes(const Format& format, int64_t n) : stored{&format, {}, n} {
    for (const Format::Plane& plane : format.planes()) {
      const int64_t count = format.blocks(n) * plane.per_block;
      memory.emplace_back(static_cast<size_t>(count * dtype_size(plane.dtype)));
      stored.planes.push_back({memory.back().data(), plane.dtype, {count}});
    }
  }
  std::vector<std::vector<char>> memory;
  Stored stored;
};

const char* const kNames[] = {"f32", "bf16", "f16", "nf4", "int8", "dynamic8", "dynamic8_unsigned",
                              "nf4_double", "int8_double"};

}  // namespace

TEST_SUITE("format") {
  TEST_CASE("by name") {
    for (const char* name : kNames) CHECK(format_by_name(name).name() == name);
    CHECK(&format_by_name("fp8") == &fp8_format());
    CHECK_FALSE(fp8_format().plain());
    CHECK(&format_by_name("bf16") == &plain_format(DType::bf16));
    CHECK(&format_by_name("nf4") == &quantized_format(CodeBook::nf4));
    CHECK(&format_by_name("dynamic8_unsigned") == &quantized_format(CodeBook::dynamic8_unsigned));
    CHECK_THROWS_WITH_AS(format_by_name("nf5"),
                         doctest::Contains("no format nf5, known are f32, bf16, f16, nf4, int8, dynamic8, dynamic8_uns"),
                         Error);
    CHECK_FALSE(format_by_name("int8").plain());
    CHECK(format_by_name("f16").plain());
  }

  TEST_CASE("planes of zero bytes stand for zeros, and parts are encoded and decoded alone") {
    const std::unique_ptr<Ops> ops = make_cpu_ops();
    for (const char* name : kNames) {
      CAPTURE(name);
      const Format& format = format_by_name(name);
      const int64_t blocks = std::max<int64_t>(256, format.block()), n = 4 * blocks - 24;
      Planes whole(format, n), in_parts(format, n);
      const auto size = static_cast<size_t>(n);
      std::vector<float> values(size), decoded(size, 7.0f), decoded_parts(size);
      whole.stored.decode(*ops, {decoded.data(), DType::f32, {n}}, {});
      for (float value : decoded) CHECK(value == 0);
      for (size_t i = 0; i < values.size(); ++i) values[i] = std::fabs(std::sin(static_cast<float>(i)));
      whole.stored.encode(*ops, {values.data(), DType::f32, {n}}, {});
      for (auto [first, count] : {std::pair<int64_t, int64_t>{2 * blocks, n - 2 * blocks}, {0, blocks}, {blocks, blocks}}) {
        const Tensor from{values.data() + first, DType::f32, {count}};
        const Tensor to{decoded_parts.data() + first, DType::f32, {count}};
        in_parts.stored.part(first, count).encode(*ops, from, {});
        in_parts.stored.part(first, count).decode(*ops, to, {});
      }
      CHECK(in_parts.memory == whole.memory);
      whole.stored.decode(*ops, {decoded.data(), DType::f32, {n}}, {});
      CHECK(decoded == decoded_parts);
    }
  }
}

}  // namespace blipft
