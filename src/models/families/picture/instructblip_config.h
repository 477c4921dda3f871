// What config.json says of an InstructBLIP model with a LLaMA (Vicuna) or a T5 language model.
#pragma once

#include <string>

#include "models/families/picture/blip_model.h"

namespace blipft {

/// Reads and checks `file`; absent keys have transformers' defaults. Throws UserError naming file, key, found value and what is
/// supported.
BlipConfig read_instructblip(const std::string& file);

}  // namespace blipft
