// Adapters in PEFT's form: a folder with adapter_config.json and adapter_model.safetensors.
#pragma once

#include <string>

#include "blipft/model.h"
#include "run/weights.h"

namespace blipft {

/// adapter_config.json for the adapters of `units`; "" where there are none.
std::string adapter_config(const Config& config, const Units& units);

/// Fills the adapters from adapter.path, if the run gives one. Throws UserError when adapter_config.json there describes
/// others than the run file, and when the folder also holds weights of the model itself that differ from model.path's.
void load_adapters(const WeightContext& context, const Config& config);

}  // namespace blipft
