// --export: the saved model of a run, made from its checkpoint.
#pragma once

#include <string>
#include <vector>

#include "blipft/comm.h"

namespace blipft {

/// Writes the model (or adapters) that the run would have saved at the step of the checkpoint in `folder`. `overrides`
/// must set output.path. Runs on the CPU with one rank; needs the model folder that the run started with.
void export_model(const std::string& folder, const std::vector<std::string>& overrides, const World& world);

}  // namespace blipft
