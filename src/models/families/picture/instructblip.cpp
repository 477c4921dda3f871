// InstructBLIP (Dai et al. 2023): a BLIP-2 whose Q-Former also reads the instruction, before a Vicuna (LLaMA) or T5.
#include "models/families/families.h"
#include "models/families/picture/instructblip_config.h"

namespace blipft {

Family families::instructblip() {
  const auto make = [](const JsonFields& fields, const ModelSettings& settings) {
    return make_blip_model(read_instructblip(fields), fields.file(), settings);
  };
  return {.spec = {.model_type = "instructblip",
                   .saved_as = {"InstructBlipForConditionalGeneration", "transformers.models.instructblip.modeling_instructblip"},
                   .tie = {.weights = {{"language_model.lm_head.weight", "language_model.model.embed_tokens.weight"},
                                       {"language_model.lm_head.weight", "language_model.shared.weight"}},
                           .by_default = true},
                   .processor_class = "InstructBlipProcessor"},
          .make = make};
}

}  // namespace blipft
