// Division by a product against division.
#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "ops/divisor.h"

namespace blipft {
namespace {

constexpr int64_t kLimit = int64_t{1} << 31;

/// Numbers below 2^31 around which an error of one in the product would show.
std::vector<int64_t> numbers_for(int64_t d, std::mt19937_64& random) {
  std::vector<int64_t> numbers{0, 1, 2, kLimit - 2, kLimit - 1};
  const auto around = [&](int64_t multiple) {
    for (int64_t n = multiple - 1; n <= multiple + 1; ++n)
      if (n >= 0 && n < kLimit) numbers.push_back(n);
  };
  around(d);
  around((kLimit - 1) / d * d);
  for (int i = 0; i < 20; ++i) {
    const auto n = static_cast<int64_t>(random() % static_cast<uint64_t>(kLimit));
    numbers.push_back(n);
    around(n / d * d);
  }
  return numbers;
}

}  // namespace

TEST_SUITE("divisor") {
  TEST_CASE("division by a product is division") {
    std::mt19937_64 random(1);
    std::vector<int64_t> divisors;
    for (int64_t d = 1; d <= 3000; ++d) divisors.push_back(d);
    for (int64_t power = 4096; power < kLimit; power *= 2)
      for (int64_t d = power - 1; d <= power + 1; ++d) divisors.push_back(d);
    divisors.push_back(kLimit - 1);
    for (int i = 0; i < 2000; ++i) divisors.push_back(1 + static_cast<int64_t>(random() % (kLimit - 1)));
    int64_t wrong = 0, tried = 0;
    for (const int64_t d : divisors) {
      const Divisor divisor = Divisor::of(d);
      for (const int64_t n : numbers_for(d, random)) {
        ++tried;
        if (divisor.divide(static_cast<uint32_t>(n)) == n / d) continue;
        if (wrong++ == 0) MESSAGE(n, " / ", d, " gives ", divisor.divide(static_cast<uint32_t>(n)));
      }
    }
    CHECK(wrong == 0);
    CHECK(tried > 300'000);
  }
}

}  // namespace blipft
