// Converts the segments of a sample into the token ids that a step needs.
#pragma once

#include <utility>
#include <vector>

#include "blipft/batch.h"
#include "blipft/loading.h"

namespace blipft {

struct PictureReader;                      // loading/picture_reader.h

/// Tokenizes a sample. The segments are encoded separately and concatenated. The tokenizer's special tokens are added
/// before the first segment and, unless sample.ends says otherwise, after the last. A whole sample is encoded as one
/// text without added tokens; an id is a training target if it covers characters of a target segment. The text is cut
/// to `max_tokens`. Throws UserError with the sample's name if an id is not below `vocabulary`, because no embedding
/// has a row for it.
/// The instruction is the text before the first training target.
/// With a `decoder_start`, the last segment is the decoder's text, which begins with this id, and all earlier segments
/// are the encoder's text. Each text has its own special tokens and is cut before those at its end. A conversation has
/// no such two texts: UserError.
/// With `pictures`, placeholders become the rows of the sample's pictures, whose sizes are read from their headers. These
/// rows do not count as tokens for `max_tokens`; a picture behind the cut is removed.
TokenizedText tokenize(const Dataset::Sample& sample, const Tokenizer& tokenizer, int64_t max_tokens,
                       int64_t vocabulary, const InstructionReader& instructions = {}, int32_t decoder_start = -1,
                       const PictureReader* pictures = nullptr);

/// The possible texts of a sample: one text, or one per answer. One of them is drawn in each pass.
struct TokenizedAnswers {
  TokenizedAnswers(TokenizedText text = {}) : texts{std::move(text)} {}  // NOLINT: implicit conversion
  std::vector<TokenizedText> texts;          ///< at least one
  std::vector<double> weights = {1};         ///< weight of each text, > 0
  int64_t number = 0;                        ///< number of the sample

  /// Returns the text that is drawn in a pass. It depends only on seed, sample and pass, not on the order of samples,
  /// ranks or machines. For pass -1, returns the first text with the largest weight.
  const TokenizedText& drawn(uint64_t seed, int64_t pass) const;
  /// Returns the text with the most pictures. Each other text has the first ones of these.
  const TokenizedText& with_max_pictures() const;
  int64_t max_tokens() const;
  int64_t tokens() const;                    ///< sum over all texts, with their instructions and sources
};
/// Calls tokenize() for each answer. If the tokenizer puts no space between separately encoded texts, a space is
/// inserted before the answer unless there is white space already.
TokenizedAnswers tokenize_answers(const Dataset::Sample& sample, const Tokenizer& tokenizer, int64_t max_tokens,
                                  int64_t vocabulary, const InstructionReader& instructions = {},
                                  int32_t decoder_start = -1, const PictureReader* pictures = nullptr);

/// Returns the id that fills padded rows after a text: the tokenizer's padding id if the model has an embedding for it,
/// else another id that has one. Its value matters only with train.loss_on_padding, which check_text_inputs() checks.
int32_t padding_id(const Tokenizer& tokenizer, int64_t vocabulary);

}  // namespace blipft
