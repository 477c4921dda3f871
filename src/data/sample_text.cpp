// The text of a sample; see sample_text.h.
#include "data/sample_text.h"

#include <algorithm>

#include "blipft/error.h"

namespace blipft {

TokenizedText tokenize(const Dataset::Sample& sample, const Tokenizer& tokenizer, int64_t max_tokens,
                       int64_t vocabulary) {
  TokenizedText text;
  const auto append = [&](const std::vector<int32_t>& ids, bool learnt) {
    text.ids.insert(text.ids.end(), ids.begin(), ids.end());
    text.learnt.resize(text.ids.size(), learnt);
  };
  BLIPFT_CHECK(!sample.segments.empty(), sample.name, ": a sample without text");
  append(tokenizer.prefix_ids(), sample.segments.front().learnt);
  for (const Dataset::Segment& segment : sample.segments) append(tokenizer.encode_plain(segment.text), segment.learnt);
  append(tokenizer.suffix_ids(), sample.segments.back().learnt);
  const size_t limit = static_cast<size_t>(std::min(max_tokens, text.size()));
  text.ids.resize(limit);
  text.learnt.resize(limit);
  for (const int32_t id : text.ids)
    BLIPFT_USER_CHECK(id >= 0 && id < vocabulary, sample.name, ": its text has a token with id ", id,
                      ", the model's vocabulary has ", vocabulary,
                      " ids (vocab_size in config.json); use the tokenizer that belongs to the model");
  return text;
}

void check_text_inputs(const Config& config, const ModelInputs& inputs, const Tokenizer& tokenizer) {
  BLIPFT_USER_CHECK(config.data.max_text_tokens <= inputs.max_text_tokens, place_of(config, "data.max_text_tokens"),
                    ": data.max_text_tokens: found ", config.data.max_text_tokens, ", expected at most ",
                    inputs.max_text_tokens, ": the model has ", inputs.prefix_rows + inputs.max_text_tokens,
                    " positions (config.json: max_position_embeddings, or a shorter sliding_window), of which ",
                    inputs.prefix_rows, " come before the text");
  BLIPFT_USER_CHECK(tokenizer.pad_id() >= 0 && tokenizer.pad_id() < inputs.vocabulary, config.model.path,
                    ": the tokenizer's padding token has id ", tokenizer.pad_id(), ", the model's vocabulary has ",
                    inputs.vocabulary, " ids (vocab_size in config.json); use the tokenizer that belongs to the model");
}

}  // namespace blipft
