// The random bits of dropout, as philox.h documents them: how often elements and pairs of them are dropped, and that all
// ways to ask for an element agree. cpu_ops_test.cpp tests the effect of dropout on an op's output.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "blipft/philox.h"
#include "ops/op_reference.h"

namespace blipft::test {

TEST_SUITE("cpu_dropout") {
  TEST_CASE("rate, also of pairs of neighbours") {
    constexpr int64_t kRows = 1000, kCols = 1001;
    constexpr double p = 0.1, n = kRows * kCols;
    OpContext c(cpu());
    const Tensor x = c.input("x", kF32, {kRows, kCols}, 1, 2), y = c.output("y", kF32, x.shape);
    c.run([&, dropout = make_dropout(c, p, 1, kRows)](Ops& ops, Stream s) { ops.dropout_add({x, {}, dropout, y}, s); });
    const Vec out = c.read(y);
    const auto zeros = [&](size_t distance) {
      double count = 0;
      for (size_t i = 0; i + distance < out.size(); ++i) count += out[i] == 0 && out[i + distance] == 0;
      return count;
    };
    // Five standard deviations. Pairs that have an element in common vary together.
    CHECK(std::abs(zeros(0) - n * p) < 5 * std::sqrt(n * p * (1 - p)));
    const double deviation = std::sqrt(n * (p * p * (1 - p * p) + 2 * p * p * p * (1 - p)));
    for (size_t distance = 1; distance <= 16; ++distance) {
      CAPTURE(distance);
      CHECK(std::abs(zeros(distance) - n * p * p) < 5 * deviation);
    }
  }

  TEST_CASE("pairs of elements are kept as the elements are") {
    const uint32_t threshold = dropout_threshold(0.3f);
    const auto block = [](uint64_t element) { return DropoutBlock(1, 2, 3, element); };
    for (uint64_t element = 0; element < 1000; ++element) {
      const auto keeps = [&](uint64_t i) { return block(i).keeps(static_cast<uint32_t>(i) % 8, threshold); };
      const uint32_t pair = block(element).keeps_pair(static_cast<uint32_t>(element) % 8, block(element + 1).words.x,
                                                      threshold);
      CHECK(pair == (keeps(element) ? 1 : 0) + (keeps(element + 1) ? 2 : 0));
    }
  }

  TEST_CASE("the smallest and the largest probabilities") {
    OpContext c(cpu());
    const float smallest = std::nextafter(0.0f, 1.0f), largest = std::nextafter(1.0f, 0.0f);
    const Tensor x = c.input("x", kF32, {100, 1001}, 1, 2);
    const Tensor kept = c.output("kept", kF32, x.shape), dropped = c.output("dropped", kF32, x.shape);
    c.run([&, few = make_dropout(c, smallest, 1, 100), maximum = make_dropout(c, largest, 1, 100)](Ops& ops, Stream s) {
      ops.dropout_add({x, {}, few, kept}, s);
      ops.dropout_add({x, {}, maximum, dropped}, s);
    });
    CHECK(c.read(kept) == c.read(x));
    const Vec out = c.read(dropped);
    CHECK(std::count(out.begin(), out.end(), 0.0) > static_cast<int64_t>(out.size()) - 20);  // 1.5 kept on average
  }
}

}  // namespace blipft::test
