// Block-wise quantisation on the CPU: against numbers that numpy computed from the papers (tools/blipft_golden/quantize.py,
// compared with bitsandbytes there), its error bounds, and the corners.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "blipft/checkpoint.h"
#include "ops/code_book.h"
#include "ops/op_reference.h"
#include "ops/quantize_cases.h"

namespace blipft::test {
namespace {

const SafetensorsReader& golden() {
  static const SafetensorsReader reader("test/golden/quantize");
  return reader;
}

template <class T>
std::vector<T> golden(const std::string& name) {
  std::vector<T> values(static_cast<size_t>(golden().tensors().at(name).numel()));
  golden().read(name, 0, static_cast<int64_t>(values.size()), values.data());
  return values;
}

template <class T>
Vec numbers(const std::vector<T>& values) {
  return Vec(values.begin(), values.end());
}

/// Quantized values of numbers in f32, and the decoded numbers.
struct Coded {
  Vec quantized, scales, decoded;
};
Coded coded(CodeBook book, const Vec& x) {
  OpContext c(cpu());
  const Tensor values = c.values("x", kF32, x), y = c.output("y", kF32, values.shape);
  const Quantized q = make_quantized(c, "q", book, values.numel());
  c.run([&](Ops& ops, Stream s) {
    ops.quantize(values, q, s);
    ops.dequantize(q, y, s);
  });
  return {c.read(q.quantized), c.read(q.scales), c.read(y)};
}

/// Half of the widest gap between values of a book, of a block's largest magnitude.
double half_gap(CodeBook book) {
  switch (book) {
    case CodeBook::nf4: return (1 - 0.6961928009986877) / 2;
    case CodeBook::int8: return 0.5 / 127;
    case CodeBook::dynamic8: return 0.9 / 64 / 2;
    case CodeBook::dynamic8_unsigned: return 0.9 / 128 / 2;
  }
  return 0;
}

}  // namespace

TEST_SUITE("cpu quantize") {
  TEST_CASE("code books, codes, scales and numbers are the reference's, to the bit") {
    for (CodeBook book : kBooks) {
      const std::string name = book_name(book);
      CAPTURE(name);
      const Coded found = coded(book, numbers(golden<float>(name + ".x")));
      CHECK(found.quantized == numbers(golden<uint8_t>(name + ".codes")));
      CHECK(found.scales == numbers(golden<float>(name + ".scales")));
      CHECK(found.decoded == numbers(golden<float>(name + ".decoded")));
    }
    const auto same = [](const auto& table, const std::string& name) {
      const std::vector<float> values = golden<float>(name + ".values");
      return std::equal(values.begin(), values.end(), std::begin(table.values), std::end(table.values));
    };
    CHECK(same(kNf4, "nf4"));
    CHECK(same(kDynamic8, "dynamic8"));
    CHECK(same(kDynamic8Unsigned, "dynamic8_unsigned"));
  }

  TEST_CASE("no number is further from its code's than half of the widest gap, and a second round changes nothing") {
    for (CodeBook book : kBooks)
      for (DType t : {kF32, kBf16, DType::f16})
        for (int64_t n : {1, 7, 64, 100, 256, 1000, 5001}) {
          CAPTURE(std::string(book_name(book)));
          CAPTURE(n);
          OpContext c(cpu());
          const bool positive = book == CodeBook::dynamic8_unsigned;
          const Tensor x = c.input(concat("x", n), t, {n}, positive ? 0 : -3, 2), y = c.output("y", kF32, {n});
          const Tensor again = c.output("again", kF32, {n});
          const Quantized q = make_quantized(c, "q", book, n), r = make_quantized(c, "r", book, n);
          c.run([&](Ops& ops, Stream s) {
            ops.quantize(x, q, s);
            ops.dequantize(q, y, s);
            ops.quantize(y, r, s);
            ops.dequantize(r, again, s);
          });
          const Vec before = c.read(x), after = c.read(y), scales = c.read(q.scales);
          bool close = true, largest = false;
          for (int64_t i = 0; i < n; ++i) {
            const double scale = at(scales, i / code_block(book));
            // f32 roundings beside the gap.
            close = close && std::fabs(at(before, i) - at(after, i)) <= scale * (half_gap(book) + 4 * 0x1p-24);
            largest = largest || std::fabs(at(before, i)) == scale;
          }
          CHECK(close);
          CHECK(largest);
          // dynamic8 has 1 but not -1: a block whose largest number is negative shrinks a little in each round.
          if (book != CodeBook::dynamic8) CHECK_CLOSE(c.read(again), after, 4 * 0x1p-24);
        }
  }

  TEST_CASE("zeros, tiny blocks, infinities and NaNs") {
    const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
    for (CodeBook book : kBooks) {
      CAPTURE(std::string(book_name(book)));
      const auto block = static_cast<size_t>(code_block(book));
      Vec x(5 * block);
      x[block + 3] = 1e-37;                  // below the least scale
      x[2 * block] = inf;
      x[3 * block] = nan;
      x[4 * block] = 1;
      const Coded found = coded(book, x);
      for (size_t i = 0; i < 2 * block; ++i) CHECK(found.decoded[i] == 0);
      for (size_t i = 2 * block; i < 4 * block; ++i) CHECK(std::isnan(found.decoded[i]));
      CHECK(found.decoded[4 * block] == doctest::Approx(1).epsilon(1e-6));
      for (size_t i = 4 * block + 1; i < 5 * block; ++i) CHECK(found.decoded[i] == 0);
    }
  }

  TEST_CASE("the last block may be cut: its codes are those of zeros") {
    for (CodeBook book : kBooks) {
      CAPTURE(std::string(book_name(book)));
      const auto block = static_cast<size_t>(code_block(book));
      Vec x(block + 5, 0.7), padded = x;
      padded.resize(2 * block);
      const Coded cut = coded(book, x), whole = coded(book, padded);
      CHECK(cut.quantized == whole.quantized);
      CHECK(cut.scales == whole.scales);
    }
  }

  TEST_CASE("one look-up counts the midpoints below any number") {
    const auto check = [](const CodeTable<256>& table, auto code_of) {
      int64_t wrong = 0;
      const auto see = [&](float y) {
        if (y < -1 || y > 1) return;
        const auto below = std::lower_bound(std::begin(table.midpoints), std::end(table.midpoints), y);
        wrong += static_cast<uint32_t>(below - std::begin(table.midpoints)) != code_of(y);
      };
      for (float m : table.midpoints)
        for (float y : {m, std::nextafter(m, -2.0f), std::nextafter(m, 2.0f)}) see(y), see(-y);
      for (float y : table.values) see(y);
      // Every 4099th number that f32 has from -1 to 1.
      for (uint32_t bits = 0; bits <= 0x3f800000u; bits += 4099)
        see(float_from_bits(bits)), see(float_from_bits(bits | 0x80000000u));
      see(0.0f), see(-0.0f), see(1.0f), see(-1.0f), see(std::numeric_limits<float>::denorm_min());
      CHECK(wrong == 0);
    };
    check(kDynamic8, [](float y) { return dynamic8_code(kDynamic8Index.entries, y); });
    check(kDynamic8Unsigned, [](float y) { return dynamic8_unsigned_code(kDynamic8UnsignedIndex.entries, y); });
  }

  TEST_CASE("double quantisation: the same codes, scales within half a step of their own code book") {
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    for (CodeBook book : {CodeBook::nf4, CodeBook::int8})
      for (int64_t n : {1, 64, 16384, 16384 + 65, 5 * 16384}) {
        CAPTURE(book_name(book));
        CAPTURE(n);
        Vec x(static_cast<size_t>(n));
        // Blocks of 64 whose sizes differ, as layers' do.
        for (size_t i = 0; i < x.size(); ++i) x[i] = normal(random) * (1 + static_cast<double>(i / 64 % 7));
        const Coded once = coded(book, x);
        OpContext c(cpu());
        const Tensor values = c.values("x", kF32, x), y = c.output("y", kF32, values.shape);
        const Quantized q = make_quantized(c, "q", book, n, true, true);
        const Quantized inner{CodeBook::dynamic8_unsigned, q.scales, q.outer, {}};
        const Tensor scales = c.output("scales", kF32, q.scales.shape);
        c.run([&](Ops& ops, Stream s) {
          ops.quantize(values, q, s);
          ops.dequantize(q, y, s);
          ops.dequantize(inner, scales, s);
        });
        const Vec quantized = c.read(q.quantized), decoded = c.read(y), outer = c.read(q.outer), approximate = c.read(scales);
        CHECK(Vec(quantized.begin(), quantized.begin() + static_cast<int64_t>(once.quantized.size())) == once.quantized);
        for (size_t b = 0; b < once.scales.size(); ++b)
          CHECK(std::fabs(approximate[b] - once.scales[b]) <=
                half_gap(CodeBook::dynamic8_unsigned) * outer[b / 256] * (1 + 1e-6));
        for (size_t b = once.scales.size(); b < approximate.size(); ++b) CHECK(approximate[b] == 0);
        for (size_t i = 0; i < x.size(); ++i) {
          const double exact = once.decoded[i] * approximate[i / 64] / once.scales[i / 64];
          CHECK(decoded[i] == doctest::Approx(exact).epsilon(1e-6));
        }
      }
  }

  TEST_CASE("arguments of other sizes are refused by name") {
    OpContext c(cpu());
    const Tensor x = c.input("x", kF32, {65}), i = c.values("i", DType::i32, {1});
    Quantized q = make_quantized(c, "q", CodeBook::nf4, 64);
    Ops& ops = cpu().ops();
    CHECK_THROWS_WITH_AS(ops.quantize(x, q, {}), doctest::Contains("quantize: to.codes has shape"), Error);
    CHECK_THROWS_WITH_AS(ops.dequantize(q, x, {}), doctest::Contains("dequantize: from.codes has shape"), Error);
    CHECK_THROWS_WITH_AS(ops.quantize(i, q, {}), doctest::Contains("values has dtype i32"), Error);
    q.scales = i;
    CHECK_THROWS_WITH_AS(ops.quantize(x.part(0, {64}), q, {}), doctest::Contains("to.scales has dtype i32"), Error);
  }
}

}  // namespace blipft::test
