// What no family's config.json may ask for.
#pragma once

#include <string>

#include "io/json_fields.h"

namespace blipft {

/// Fails where a model asks for dropout that there is no operation for, and the run does not turn all dropout off.
inline void check_dropout(const std::string& file, const std::string& key, float found, bool dropout) {
  BLIPFT_USER_CHECK(found == 0 || !dropout, file, ": ", key, ": found ", found,
                    ", supported is 0; train.dropout=false turns all dropout off, this too");
}

/// Fails where the checkpoint's weights are quantised: they are no numbers that could be read.
inline void refuse_quantised(const JsonFields& fields) {
  BLIPFT_USER_CHECK(!fields.has("quantization_config"), fields.file(), ": ", fields.prefix(),
                    "quantization_config: found ", fields.quote("quantization_config"),
                    "; weights that are stored quantised are not supported: take the model's checkpoint in f32, f16 or ",
                    "bf16, and quantise it here with model.quantize");
}

}  // namespace blipft
