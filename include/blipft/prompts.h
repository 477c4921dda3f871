// Prompts: the texts that generation continues, from a dataset's samples or from the command line, and their
// references.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "blipft/datasets.h"
#include "blipft/error.h"

namespace blipft {

struct PictureReader;                      // src/loading/picture_reader.h
struct Conversation;                       // src/text/chat_template.h

struct PromptSettings {
  /// Maximum number of tokens; 0: no limit. A longer prompt loses tokens after the special tokens at its start.
  int64_t max_tokens = 0;
  int64_t vocabulary = 0;                   ///< the model's vocabulary size: ids must be smaller
  bool ends = false;                        ///< also append the special tokens that the tokenizer puts after a text:
                                            ///< for an encoder, which reads a complete text
  InstructionReader instructions = {};      ///< if the model reads instructions, the prompts are these
  const PictureReader* pictures = nullptr;  ///< if the model reads pictures in texts
};

struct PromptedSample {
  std::string name;                         ///< name of the dataset's sample
  std::string id;                           ///< question_id or image_id of the record, as JSON; empty: none
  std::vector<int32_t> ids;                 ///< may be empty: no prompt, and no special tokens before texts
  std::vector<std::string> references;      ///< reference texts; an answer occurs as often as people gave it
  int64_t picture = -1;                     ///< index of the sample whose picture belongs to the prompt; -1: none
  bool cut = false;                         ///< true if the prompt was longer than max_tokens
  std::vector<int32_t> instruction = {};    ///< ids of the prompt by settings.instructions
  std::vector<PictureFile> picture_files = {};  ///< pictures in the text
  std::vector<PictureSegment> pictures = {};    ///< their rows among the ids, without patches
};

/// Returns the prompt of one sample: all text before the last turn's answer. Throws UserError with the sample's name.
PromptedSample prompt_of_sample(const Dataset& dataset, int64_t index, const Tokenizer& tokenizer,
                                const PromptSettings& settings);
/// Returns the prompts of the first `maximum` samples (0: all), in their order. Samples with the same picture, prompt and
/// id are merged into one with the references of all. The error of a sample that cannot be read or tokenized is passed
/// to `bad`, or thrown if `bad` is empty.
std::vector<PromptedSample> prompts_of_dataset(const Dataset& dataset, const Tokenizer& tokenizer,
                                               const PromptSettings& settings, int64_t maximum = 0,
                                               const std::function<void(const UserError&)>& bad = {});

/// Returns the ids of a prompt that is this text; `location` (the option) is used in messages.
std::vector<int32_t> prompt_of_text(const std::string& text, const Tokenizer& tokenizer, const PromptSettings& settings,
                                    const std::string& location);
/// Returns the ids of the prompt for the answer that follows these messages. They equal those of prompt_of_sample() for
/// a record with the same messages. Throws UserError if `texts` has no chat template or it refuses the messages.
std::vector<int32_t> prompt_of_conversation(const Conversation& conversation, const Tokenizer& tokenizer,
                                            const TextSettings& texts, const PromptSettings& settings, const std::string& location);
/// Returns the prompt of a conversation with the pictures that its messages have as parts.
PromptedSample prompt_with_pictures(const Conversation& conversation, std::vector<PictureFile> pictures, const Tokenizer& tokenizer,
                                    const TextSettings& texts, const PromptSettings& settings, const std::string& location);

}  // namespace blipft
