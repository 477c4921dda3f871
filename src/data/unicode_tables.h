// The tables that tools/make_unicode_tables.py writes: character classes and NFC data. Only unicode.cpp reads them.
#pragma once

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

}  // namespace blipft::unicode_tables
