// Prompts: what generation goes on from, of a dataset's samples or from the command line, and the texts that would be right.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "blipft/datasets.h"
#include "blipft/error.h"

namespace blipft {

struct PromptSettings {
  int64_t max_tokens = 0;                   ///< longer prompts lose tokens behind those that begin every text; 0: any length
  int64_t vocabulary = 0;                   ///< of the model: ids are below
  bool ends = false;                        ///< what the tokenizer puts behind every text stands behind the prompt too: for
                                            ///< an encoder's text, which is whole
  InstructionReader instructions = {};      ///< where the model reads any: they are the prompts
};

struct PromptedSample {
  std::string name;                         ///< as of the dataset's sample
  std::string id;                           ///< question_id or image_id of the record, as JSON; empty: it has none
  std::vector<int32_t> ids;                 ///< may be empty: no prompt, of a tokenizer that puts nothing before a text
  std::vector<std::string> references;      ///< texts that would be right; answers as often as people gave them
  int64_t picture = -1;                     ///< a sample of the dataset whose picture belongs to it; -1: none
  bool cut = false;                         ///< it was longer than max_tokens
  std::vector<int32_t> instruction = {};    ///< its ids by settings.instructions
};

/// The prompt of one sample: everything up to the answer of the last turn. Throws UserError with the sample's name.
PromptedSample prompt_of_sample(const Dataset& dataset, int64_t index, const Tokenizer& tokenizer,
                                const PromptSettings& settings);
/// The prompts of the first `most` samples (0: all), in their order. Samples with the same picture, prompt and id are one,
/// with the references of all. A sample that cannot be read or tokenized goes to `bad`; without it its error
/// is thrown.
std::vector<PromptedSample> prompts_of_dataset(const Dataset& dataset, const Tokenizer& tokenizer,
                                               const PromptSettings& settings, int64_t most = 0,
                                               const std::function<void(const UserError&)>& bad = {});

/// How a text becomes a prompt: as it is, or as what a user says, by the chat template of the model's files.
enum class PromptForm { text, message };
/// Ids of a prompt that is given as text; `place` (the option) is for messages. Throws UserError where there is to be a chat
/// template and `texts` has none.
std::vector<int32_t> prompt_of_text(const std::string& text, PromptForm form, const Tokenizer& tokenizer,
                                    const TextSettings& texts, const PromptSettings& settings, const std::string& place);

}  // namespace blipft
