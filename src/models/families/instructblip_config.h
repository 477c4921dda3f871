// What config.json says of an InstructBLIP model with a LLaMA (Vicuna) language model.
#pragma once

#include <string>

#include "models/families/llama_config.h"
#include "models/families/qformer.h"
#include "models/families/vit.h"

namespace blipft {

struct InstructBlipConfig {
  VitShape vision;
  QFormerShape qformer;
  LlamaConfig text;

  /// Reads and checks `file`; absent keys have transformers' defaults. Throws UserError naming file, key, found value
  /// and what is supported.
  static InstructBlipConfig read(const std::string& file);
};

}  // namespace blipft
