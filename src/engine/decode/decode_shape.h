// The shape of a decode program: the number and length of texts at once, derived from the texts to generate.
#pragma once

#include "engine/decode/decode_program.h"
#include "engine/decode/generate_settings.h"

namespace blipft {

/// The sizes of the texts to generate, as far as memory depends on them.
struct TextsToGenerate {
  int64_t longest_prompt = 1;              ///< ids of the longest prompt (or source of a scored text) of all ranks
  int64_t texts = 1;                       ///< maximum number of texts of a rank
  int64_t longest_text = 0;                ///< ids of the longest scored text; 0: no text is scored
  int64_t longest_instruction = 0;         ///< ids of the longest instruction of these texts
  PictureShape pictures = {};              ///< the most that the pictures in one of these texts have, without padding
};

/// The texts that a run generates at its validations.
struct EvaluationWork {
  GenerateSettings settings;
  ModelInputs inputs;
  int64_t longest_prompt = 1, prompts = 1; ///< over all ranks
  int64_t batch_size = 0;                  ///< texts generated in parallel on each rank; 0: automatic
  int64_t longest_instruction = 0;
  PictureShape pictures = {};
  TextsToGenerate of_rank(int64_t ranks) const {
    return {longest_prompt, (prompts + ranks - 1) / ranks, 0, longest_instruction, pictures};
  }
};

/// Maximum number of prompts that one pass reads.
inline constexpr int64_t kMaxPrompts = 64;

/// Returns the maximum number of slots for `texts` texts of a rank. `batch_size`: texts at once; 0: as many as are
/// useful.
int64_t max_slots(const GenerateSettings& settings, int64_t batch_size, int64_t texts, bool gpu);

/// Returns the settings of a decode program with `slots` slots for the texts of `work`. `inputs`: inputs of the model.
DecodeProgramSettings decode_settings(const GenerateSettings& settings, const ModelInputs& inputs,
                                      const TextsToGenerate& work, int64_t slots, bool gpu);

}  // namespace blipft
