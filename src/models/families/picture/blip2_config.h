// Reads config.json of a BLIP-2 model with an OPT or a T5 language model.
#pragma once

#include <string>

#include "models/families/picture/blip_model.h"

namespace blipft {

class JsonFields;

/// Reads and checks a config.json; absent keys have transformers' defaults. Throws UserError naming file, key, found value and what is
/// supported.
BlipConfig read_blip2(const JsonFields& fields);

// Functions that other families of the BLIP kind share.

/// Reads everything except the language model and the instructions of a Q-Former.
BlipConfig read_blip(const JsonFields& fields);
/// Returns true if the model_type of the language model is "t5", false if it is `decoder`. Throws UserError for others,
/// or if use_decoder_only_language_model contradicts.
bool has_encoder(const JsonFields& fields, const std::string& decoder);

}  // namespace blipft
