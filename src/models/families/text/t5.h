// The T5 family (Raffel et al. 2020): T5, T5 v1.1 and flan-T5, as text models and as part of a BLIP-2.
//
// Parameter groups of the text models: embeddings (of both sides, with a tied head's weight), encoder (its layers and
// the norm after them), decoder, head (the decoder's final norm and an untied head's weight).
#pragma once

#include <functional>
#include <string>

#include "models/blocks/linear_lora.h"
#include "models/families/text/t5_config.h"
#include "models/language/encoder_decoder.h"

namespace blipft {

/// The part of the model to which a unit belongs.
enum class T5Part { embeddings, encoder, decoder, head };

/// The names and numbers of a T5 as a part of a model.
struct T5Placement {
  std::string root, units;                 ///< prefixes of the names of parameters, and of units
  uint32_t dropout_site = 0;               ///< number of its first dropout site
};
/// Returns the inputs of a T5 that reads nothing before the source.
ModelInputs t5_inputs(const T5Config& config);
EncoderDecoder make_t5(const T5Config& config, const T5Placement& placement, const ModelSettings& settings,
                       const std::function<Unit&(T5Part part, const std::string& name)>& add_unit, LoraBuilder& lora);

}  // namespace blipft
