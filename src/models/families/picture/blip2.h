// The BLIP-2 family, for the factory table.
#pragma once

#include <memory>
#include <string>

#include "blipft/model.h"

namespace blipft {

std::unique_ptr<Model> make_blip2(const std::string& config_file, const ModelSettings& settings);

}  // namespace blipft
