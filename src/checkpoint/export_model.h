// --export: what a run would have saved, from its checkpoint.
#pragma once

#include <string>
#include <vector>

#include "blipft/comm.h"

namespace blipft {

/// Writes the model (or adapters) that the run of the checkpoint in `folder` would have saved after its steps, under
/// output.path, which `overrides` give. On the CPU, by one rank; needs the model directory that the run began with.
void export_model(const std::string& folder, const std::vector<std::string>& overrides, const World& world);

}  // namespace blipft
