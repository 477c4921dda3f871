// The tables that tools/make_bert_tables.py writes. Only tokenizer_wordpiece.cpp reads them.
#pragma once

#include <cstddef>

#include "text/letter_case.h"
#include "text/unicode_tables.h"

namespace blipft::bert_tables {

using unicode_tables::CodePointRange;

// All sorted ascending.
extern const CodePointRange removed[];      ///< control characters and the like
extern const size_t removed_size;
extern const CodePointRange accents[];      ///< marks that go where accents are stripped
extern const size_t accents_size;
extern const CodePointRange chinese[];      ///< each a word of its own
extern const size_t chinese_size;
extern const CodePointRange punctuation[];  ///< likewise
extern const size_t punctuation_size;
extern const CapitalRange capitals[];       ///< all but U+0130
extern const size_t capitals_size;

}  // namespace blipft::bert_tables
