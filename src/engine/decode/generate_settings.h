// GenerateSettings: the settings of generation, from config.generate and the model folder's generation_config.json.
#pragma once

#include <string>
#include <vector>

#include "blipft/batch.h"
#include "blipft/engine_settings.h"
#include "blipft/decode_ops.h"
#include "blipft/text.h"

namespace blipft {

struct GenerateSettings {
  TokenRules rules;                        ///< without the tensor of rules.ends; see `ends`
  std::vector<int32_t> ends;               ///< ids of tokens that end a text, ascending
  std::vector<std::string> stop;
  std::string ignore_before;               ///< evaluate.ignore_before; whoever scores answers sets it
  int64_t beams = 1, returned = 1;
  float length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::no;
  int64_t max_new_tokens = 0;              ///< not used with max_length
  int64_t max_length = 0;                  ///< rows of a text with its prompt and pictures; 0: use max_new_tokens
  std::string file;                        ///< generation_config.json, for messages

  /// Returns the maximum ids of a text with a prompt of `prompt` ids. The last id needs no position: the model never
  /// reads it.
  int64_t max_ids(const ModelInputs& inputs, int64_t prompt) const;
  /// Returns the maximum new tokens of such a text, at least 1. Throws UserError if max_length allows none.
  int64_t new_tokens(const ModelInputs& inputs, int64_t prompt) const;
  std::string text() const;                ///< "greedy", "beam search of 5", "drawn at temperature 0.7, top_p 0.9"
};

/// Returns the settings of generation. A key of the run file has precedence over generation_config.json in `folder`,
/// and that over the default of transformers. Throws UserError with file and key if generation_config.json sets an
/// unsupported key that would change tokens, or if an end is not in the vocabulary. Without a tokenizer (in plans) ends
/// may be missing.
GenerateSettings generate_settings(const EngineSettings& config, const std::string& folder, const Tokenizer* tokenizer,
                                   const ModelInputs& inputs);

/// Returns a message about the sampling keys that the user sets although no token is sampled; "" if there are none. A
/// default value in a run file does not count, because the config.yaml that is saved with answers contains all keys.
std::string unused_sampling(const EngineSettings& config, const GenerateSettings& settings);

}  // namespace blipft
