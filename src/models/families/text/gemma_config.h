// What config.json says of a Gemma: of the model types gemma2 and gemma3_text, and of the texts' part of gemma3.
#pragma once

#include "models/families/text/decoder.h"

namespace blipft {

class JsonFields;

struct GemmaConfig : DecoderConfig {
  bool within = false;                     ///< of a model that sees pictures too (gemma3)
  /// Reads and checks `file`; absent keys have transformers' defaults. Throws UserError naming file, key, found value
  /// and what is supported.
  static GemmaConfig read(const std::string& file);
  /// The same of a part of a file.
  static GemmaConfig read(const JsonFields& fields);
};

}  // namespace blipft
