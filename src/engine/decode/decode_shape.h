// The shape of a decode program: how many texts of which length grow at once, from what there is to generate.
#pragma once

#include "engine/decode/decode_program.h"
#include "engine/decode/generate_settings.h"

namespace blipft {

/// What there is to generate, as far as memory depends on it.
struct TextsToGenerate {
  int64_t longest_prompt = 1;              ///< ids of the longest prompt of any rank, or source of a text that is scored
  int64_t texts = 1;                       ///< of the rank that has most
  int64_t longest_text = 0;                ///< ids of the longest text that is scored; 0: none is
  int64_t longest_instruction = 0;         ///< ids of the longest instruction beside one of these
};

/// What a run generates at its validations.
struct EvaluationWork {
  GenerateSettings settings;
  ModelInputs inputs;
  int64_t longest_prompt = 1, prompts = 1; ///< of all ranks
  int64_t batch_size = 0;                  ///< texts that grow at once on a rank; 0: as many as are useful and fit
  int64_t longest_instruction = 0;
  TextsToGenerate of_rank(int64_t ranks) const {
    return {longest_prompt, (prompts + ranks - 1) / ranks, 0, longest_instruction};
  }
};

/// Prompts that are read at once, at most.
inline constexpr int64_t kMaxPrompts = 64;

/// Slots for so many texts of a rank, at most. `batch_size`: texts at once; 0: as many as are useful.
int64_t max_slots(const GenerateSettings& settings, int64_t batch_size, int64_t texts, bool gpu);

/// The program's shape for such texts with so many slots. `inputs` say what the model reads.
DecodeProgramSettings decode_settings(const GenerateSettings& settings, const ModelInputs& inputs,
                                      const TextsToGenerate& work, int64_t slots, bool gpu);

}  // namespace blipft
