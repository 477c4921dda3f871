// BLIP-2 (Li et al. 2023): a Q-Former whose queries read only the picture, before OPT or T5.
#include "models/families/families.h"
#include "models/families/picture/blip2_config.h"

namespace blipft {

Family families::blip2() {
  const auto make = [](const JsonFields& fields, const ModelSettings& settings) {
    return make_blip_model(read_blip2(fields), fields.file(), settings);
  };
  return {.spec = {.model_type = "blip-2",
                   .saved_as = {"Blip2ForConditionalGeneration", "transformers.models.blip_2.modeling_blip_2"},
                   .tokenizer = {"GPT2Tokenizer"},
                   .tie = {.weights = {{"language_model.lm_head.weight", "language_model.model.decoder.embed_tokens.weight"},
                                       {"language_model.lm_head.weight", "language_model.shared.weight"}},
                           .by_default = true},
                   .processor_class = "Blip2Processor"},
          .make = make};
}

}  // namespace blipft
