// The LLaMA family (llama, mistral, qwen2, qwen3, smollm3, phi3, olmo2), for the factory table.
#pragma once

#include <memory>
#include <string>

#include "blipft/model.h"

namespace blipft {

std::unique_ptr<Model> make_llama(const std::string& config_file, const ModelSettings& settings);

}  // namespace blipft
