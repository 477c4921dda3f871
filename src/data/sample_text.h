// The text of a sample, from its segments to the ids that a step wants.
#pragma once

#include "blipft/batch.h"
#include "blipft/data.h"

namespace blipft {

/// Each segment is encoded apart, then they are joined; the special tokens that the tokenizer puts before and behind a
/// text go before the first and behind the last segment. The joined text is cut to `max_tokens`. Throws UserError with
/// the sample's name if an id is not below `vocabulary`: no embedding has a row for it.
TokenizedText tokenize(const Dataset::Sample& sample, const Tokenizer& tokenizer, int64_t max_tokens,
                       int64_t vocabulary);

}  // namespace blipft
