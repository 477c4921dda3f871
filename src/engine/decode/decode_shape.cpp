// The shape of a decode program; see decode_shape.h.
#include "engine/decode/decode_shape.h"

#include <algorithm>

#include "loading/text_shapes.h"

namespace blipft {

namespace {

// Maximum number of texts at once: beyond a few hundred, the time of a pass grows in proportion to the texts.
constexpr int64_t kMaxSlots = 256, kMaxSlotsOnCpu = 16;
// Rows of prompts in one pass: enough for matrix products to reach their full speed.
constexpr int64_t kPromptRows = 4096, kPromptRowsOnCpu = 512;

}  // namespace

int64_t max_slots(const GenerateSettings& settings, int64_t batch_size, int64_t texts, bool gpu) {
  if (batch_size > 0) return batch_size * settings.beams;
  const int64_t useful = std::min(texts * settings.beams, gpu ? kMaxSlots : kMaxSlotsOnCpu);
  return std::max(settings.beams, useful / settings.beams * settings.beams);
}

DecodeProgramSettings decode_settings(const GenerateSettings& settings, const ModelInputs& inputs,
                                      const TextsToGenerate& work, int64_t slots, bool gpu) {
  DecodeProgramSettings program;
  program.slots = slots;
  program.beams = settings.beams;
  const int64_t before = inputs.has_source() ? 1 : work.longest_prompt;  // ids in a slot
  const int64_t sources = inputs.has_source() ? std::max<int64_t>({1, work.longest_prompt, work.longest_instruction}) : 0;
  program.max_ids = settings.max_ids(inputs, work.longest_prompt);
  const int64_t tokens = std::max<int64_t>({2, before, work.longest_text, inputs.has_source() ? 0 : work.longest_instruction});
  const int64_t rows = gpu ? kPromptRows : kPromptRowsOnCpu, each = tokens + sources + inputs.text.first_rows + inputs.source.first_rows;
  program.prompts = std::clamp<int64_t>(rows / each, 1, std::min(kMaxPrompts, slots / settings.beams));
  program.prompt_text = {.tokens = tokens, .packed_rows = program.prompts * tokens, .source_tokens = sources,
                         .packed_source_rows = program.prompts * sources};
  if (inputs.text.pictures) {
    const PictureShape& each_text = work.pictures;
    program.prompt_text.pictures = padded_pictures({program.prompts * each_text.rows, program.prompts * each_text.count,
                                                    each_text.largest, program.prompts * each_text.windows}, inputs.patches, 1);
  }
  program.rules = settings.rules;
  program.ends = settings.ends;
  program.length_penalty = settings.length_penalty;
  program.early_stopping = settings.early_stopping;
  program.scores = work.longest_text > 0;
  return program;
}

}  // namespace blipft
