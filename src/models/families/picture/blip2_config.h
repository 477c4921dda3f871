// What config.json says of a BLIP-2 model with an OPT or a T5 language model.
#pragma once

#include <string>

#include "models/families/picture/blip_model.h"

namespace blipft {

class JsonFields;

/// Reads and checks a config.json; absent keys have transformers' defaults. Throws UserError naming file, key, found value and what is
/// supported.
BlipConfig read_blip2(const JsonFields& fields);

// What the reading of BLIP-2's relatives shares.

/// All but the language model; `queries` of a Q-Former without instructions.
BlipConfig read_blip(const JsonFields& fields);
/// The model_type of a language model, which is either `decoder` or "t5". Throws where use_decoder_only_language_model says
/// otherwise.
bool has_encoder(const JsonFields& fields, const std::string& decoder);

}  // namespace blipft
