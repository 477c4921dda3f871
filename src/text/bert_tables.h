// The tables that tools/make_bert_tables.py writes. Only tokenizer_wordpiece.cpp reads them.
#pragma once

#include <span>

#include "text/unicode_additions.h"

namespace blipft::bert_tables {

// All ascending.
extern const std::span<const unicode::CodePoints> removed;      ///< control characters and the like
extern const std::span<const unicode::CodePoints> accents;      ///< marks that are removed if accents are stripped
extern const std::span<const unicode::CodePoints> chinese;      ///< each is a separate word
extern const std::span<const unicode::CodePoints> punctuation;  ///< each is a separate word

}  // namespace blipft::bert_tables
