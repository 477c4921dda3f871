// Small letters for capitals, in any script: what str.lower() of Python and String.toLowerCase() of Java give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

namespace blipft {

/// Capitals first, first + step, ..., last; the small letter of c is c + distance.
struct CapitalRange {
  uint32_t first, last;
  int32_t step, distance;
};
extern const CapitalRange capital_ranges[];  // ascending
extern const size_t capital_ranges_size;

/// The small letter of `c` by `count` ranges, ascending; else `c`.
uint32_t small_letter(const CapitalRange* ranges, size_t count, uint32_t c);

/// `text` in small letters, as UTF-8. A capital sigma that ends a word becomes the final sigma.
std::string in_small_letters(std::u32string_view text);
/// The same of UTF-8; what is ill-formed becomes U+FFFD.
std::string in_small_letters(std::string_view text);

}  // namespace blipft
