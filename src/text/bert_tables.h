// The tables that tools/make_bert_tables.py writes. Only tokenizer_wordpiece.cpp reads them.
#pragma once

#include <span>

#include "text/unicode_additions.h"

namespace blipft::bert_tables {

// All ascending.
extern const std::span<const unicode::CodePoints> removed;      ///< control characters and the like
extern const std::span<const unicode::CodePoints> accents;      ///< marks that go where accents are stripped
extern const std::span<const unicode::CodePoints> chinese;      ///< each a word of its own
extern const std::span<const unicode::CodePoints> punctuation;  ///< likewise

}  // namespace blipft::bert_tables
