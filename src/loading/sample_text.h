// The text of a sample, from its segments to the ids that a step wants.
#pragma once

#include <utility>
#include <vector>

#include "blipft/batch.h"
#include "blipft/loading.h"

namespace blipft {

/// Each segment is encoded apart, then they are joined; the special tokens that the tokenizer puts before and behind a
/// text go before the first and, unless sample.ends says otherwise, behind the last segment. A whole sample is encoded
/// in one go, with nothing put around it; an id that has characters of a learnt segment is learnt. The text is cut to
/// `max_tokens`. Throws UserError with the sample's name if an id is not below `vocabulary`: no embedding has a row for
/// it.
/// The instruction is what stands before all that is learnt.
/// With a `decoder_start` the last segment is the decoder's text, behind that id, and all before it are the encoder's; each
/// is a text of its own, with special tokens of its own, and is cut so that the tokens behind it stay. Conversations have
/// no such sides: a UserError.
TokenizedText tokenize(const Dataset::Sample& sample, const Tokenizer& tokenizer, int64_t max_tokens,
                       int64_t vocabulary, const InstructionReader& instructions = {}, int32_t decoder_start = -1);

/// The texts that a sample may have: one, or that of each answer. One is drawn in each pass.
struct TokenizedAnswers {
  TokenizedAnswers(TokenizedText text = {}) : texts{std::move(text)} {}  // NOLINT: a text alone is one of these
  std::vector<TokenizedText> texts;          ///< at least one
  std::vector<double> weights = {1};         ///< of each, > 0
  int64_t number = 0;                        ///< the sample's

  /// By seed, sample and pass alone, whatever the order of samples, ranks and machines. Pass -1: the text of the largest
  /// weight, of these the first.
  const TokenizedText& drawn(uint64_t seed, int64_t pass) const;
  int64_t most_tokens() const;
  int64_t tokens() const;                    ///< of all, with their instructions and sources
};
/// tokenize() of each answer. Where the tokenizer puts no space between texts that are encoded apart, one stands before an
/// answer, unless white space is there already.
TokenizedAnswers tokenize_answers(const Dataset::Sample& sample, const Tokenizer& tokenizer, int64_t max_tokens,
                                  int64_t vocabulary, const InstructionReader& instructions = {},
                                  int32_t decoder_start = -1);

/// The id behind texts in padded rows: the tokenizer's where the model has an embedding for it, else another that has
/// one. Nothing reads it, but with train.loss_on_padding, which check_text_inputs() looks at.
int32_t padding_id(const Tokenizer& tokenizer, int64_t vocabulary);

}  // namespace blipft
