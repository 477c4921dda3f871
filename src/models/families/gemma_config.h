// What config.json says of a Gemma: of the model types gemma2 and gemma3_text.
#pragma once

#include "models/families/decoder.h"

namespace blipft {

struct GemmaConfig : DecoderConfig {
  /// Reads and checks `file`; absent keys have transformers' defaults. Throws UserError naming file, key, found value
  /// and what is supported.
  static GemmaConfig read(const std::string& file);
};

}  // namespace blipft
