// What config.generate and a model folder's generation_config.json say together about how texts are generated.
#pragma once

#include <string>
#include <vector>

#include "blipft/batch.h"
#include "blipft/config.h"
#include "blipft/decode_ops.h"
#include "blipft/text.h"

namespace blipft {

struct GenerateSettings {
  TokenRules rules;                        ///< but for its tensor: ends
  std::vector<int32_t> ends;               ///< ids that end a text, ascending
  std::vector<std::string> stop;
  int64_t beams = 1, returned = 1;
  float length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::no;
  int64_t max_new_tokens = 0;              ///< not used with max_length
  int64_t max_length = 0;                  ///< rows of a text, its prompt's and its pictures' included; 0: as max_new_tokens says
  std::string file;                        ///< generation_config.json, for messages

  /// The most ids that a text with a prompt of `prompt` ids grows to. The last one needs no position: nothing follows it.
  int64_t max_ids(const ModelInputs& inputs, int64_t prompt) const;
  /// The most new tokens of such a text, at least 1. Throws UserError if max_length leaves none.
  int64_t new_tokens(const ModelInputs& inputs, int64_t prompt) const;
  std::string text() const;                ///< "greedy", "beam search of 5", "drawn at temperature 0.7, top_p 0.9"
};

/// A key that the run file gives is as given; else as generation_config.json in `folder` says, else as transformers does.
/// Throws UserError naming file and key of what generation_config.json asks for and this program does not do, where that
/// would change tokens, and of an end that is no id of the vocabulary. Without a tokenizer (of a plan) ends may be missing.
GenerateSettings generate_settings(const Config& config, const std::string& folder, const Tokenizer* tokenizer,
                                   const ModelInputs& inputs);

/// "generate.temperature, generate.top_k are not looked at: ...": keys that are given and that `settings`, which draw
/// nothing, do not look at; "" where there are none. A value in a file that is the default is none: the config.yaml beside answers has all.
std::string unused_sampling(const Config& config, const GenerateSettings& settings);

}  // namespace blipft
