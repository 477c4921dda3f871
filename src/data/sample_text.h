// The text of a sample, from its segments to the ids that a step wants.
#pragma once

#include "blipft/batch.h"
#include "blipft/data.h"

namespace blipft {

/// Each segment is encoded apart, then they are joined; the special tokens that the tokenizer puts before and behind a
/// text go before the first and, unless sample.ends says otherwise, behind the last segment. A whole sample is encoded
/// in one go, with nothing put around it; an id that has characters of a learnt segment is learnt. The text is cut to
/// `max_tokens`. Throws UserError with the sample's name if an id is not below `vocabulary`: no embedding has a row for
/// it.
TokenizedText tokenize(const Dataset::Sample& sample, const Tokenizer& tokenizer, int64_t max_tokens,
                       int64_t vocabulary);

/// The id behind texts in padded rows: the tokenizer's where the model has an embedding for it, else another that has
/// one. Nothing reads it, but with train.loss_on_padding, which check_text_inputs() looks at.
int32_t padding_id(const Tokenizer& tokenizer, int64_t vocabulary);

}  // namespace blipft
