// Reads config.json of an InstructBLIP model with a LLaMA (Vicuna) or a T5 language model.
#pragma once

#include "models/families/picture/blip_model.h"

namespace blipft {

/// Reads and checks a config.json; absent keys have transformers' defaults. Throws UserError naming file, key, found value and what is
/// supported.
BlipConfig read_instructblip(const JsonFields& fields);

}  // namespace blipft
