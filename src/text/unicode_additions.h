// The differences that tools/make_unicode_tables.py finds between the Hugging Face library and utf8proc 2.8
// (Unicode 15.0) or PCRE2 10.42 (14.0): the library has Unicode 16 and 17, and normal forms of 10. Newer versions of
// utf8proc and PCRE2 have these characters too, with the same properties.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "text/unicode.h"

namespace blipft::unicode {

struct AddedCategory {
  uint32_t first, last;
  Category category;
};
/// Capitals from first to last; the lower case of c is c + distance.
struct AddedCapitals {
  uint32_t first, last;
  int32_t distance;
};
/// Members of a script or of Alphabetic or Lowercase; `property`: in lowercase, without "_".
struct AddedMembers {
  const char* property;
  uint32_t first, last;
};
struct CodePoints {
  uint32_t first, last;
};

// All are ascending; added_members are sorted by property.
extern const std::span<const AddedCategory> added_categories;
extern const std::span<const AddedCapitals> added_capitals;
extern const std::span<const AddedMembers> added_members;
extern const std::span<const CodePoints> never_normalized;

/// Returns true if one of the ranges, which are ascending, contains the code point.
template <class Ranges>
bool is_in(const Ranges& ranges, uint32_t code_point) {
  const auto above = std::upper_bound(ranges.begin(), ranges.end(), code_point,
                                      [](uint32_t c, const auto& range) { return c < range.first; });
  return above != ranges.begin() && code_point <= above[-1].last;
}

}  // namespace blipft::unicode
