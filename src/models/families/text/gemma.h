// The Gemma family (gemma2, gemma3_text), for the factory table.
#pragma once

#include <memory>
#include <string>

#include "blipft/model.h"

namespace blipft {

std::unique_ptr<Model> make_gemma(const std::string& config_file, const ModelSettings& settings);

}  // namespace blipft
