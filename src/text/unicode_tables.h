// The tables that tools/make_unicode_tables.py writes: character classes and NFC data. Only unicode.cpp reads them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace blipft::unicode_tables {

struct CodePointRange {
  uint32_t first, last;  // both included
};
struct CombiningClass {
  uint32_t first, last, value;
};
struct Decomposition {
  uint32_t code_point, parts[4];  // full canonical decomposition, filled up with 0
};
struct Composition {
  uint32_t first, second, composed;
};

// All sorted ascending.
extern const CodePointRange letters[];
extern const size_t letters_size;
extern const CodePointRange numbers[];
extern const size_t numbers_size;
extern const CodePointRange spaces[];
extern const size_t spaces_size;
extern const CodePointRange words[];
extern const size_t words_size;
extern const CodePointRange capitals[];
extern const size_t capitals_size;
extern const CodePointRange small_letters[];
extern const size_t small_letters_size;
extern const CodePointRange marks[];
extern const size_t marks_size;
extern const CombiningClass combining_classes[];
extern const size_t combining_classes_size;
extern const Decomposition decompositions[];
extern const size_t decompositions_size;
extern const Composition compositions[];
extern const size_t compositions_size;

/// Whether one of `count` ranges, ascending, has it.
inline bool in_ranges(const CodePointRange* ranges, size_t count, uint32_t code_point) {
  const CodePointRange* end = ranges + count;
  const CodePointRange* found = std::upper_bound(
      ranges, end, code_point, [](uint32_t value, const CodePointRange& range) { return value < range.first; });
  return found != ranges && code_point <= found[-1].last;
}

}  // namespace blipft::unicode_tables
