// Checks of config.json that apply to all model families.
#pragma once

#include <string>

#include "io/json_fields.h"

namespace blipft {

/// Throws UserError if config.json sets a dropout that is not implemented, unless the run disables all dropout.
inline void check_dropout(const std::string& file, const std::string& key, float found, bool dropout) {
  BLIPFT_USER_CHECK(found == 0 || !dropout, file, ": ", key, ": found ", found,
                    ", supported is 0; train.dropout=false turns all dropout off, this too");
}

/// Throws UserError if the checkpoint's weights are quantized, because this program cannot read them.
inline void refuse_quantised(const JsonFields& fields) {
  BLIPFT_USER_CHECK(!fields.has("quantization_config"), fields.file(), ": ", fields.prefix(),
                    "quantization_config: found ", fields.quote("quantization_config"),
                    "; weights that are stored quantised are not supported: take the model's checkpoint in f32, f16 or ",
                    "bf16, and quantise it here with model.quantize");
}

}  // namespace blipft
