// Adapters in PEFT's format: a folder with adapter_config.json and adapter_model.safetensors.
#pragma once

#include <string>

#include "blipft/key_locations.h"
#include "blipft/model.h"
#include "blipft/weight_settings.h"
#include "weights/weights.h"

namespace blipft {

/// The adapters of a run, and the model that they belong to.
struct AdapterFiles {
  const ModelSection& model;
  const AdapterSection& adapter;
  const KeyLocations& places;                 ///< for messages
};

/// Returns the text of adapter_config.json for the adapters of `units`; "" if there are none.
std::string adapter_config(const AdapterFiles& files, const Units& units);

/// Throws UserError if adapter.path is set and has no adapters, or adapters with other settings than the run file, or
/// tensors with other names or shapes than the adapters of `units`. Reads only headers.
void check_adapters(const AdapterFiles& files, const Units& units);

/// Loads the adapters from adapter.path, if it is set. Throws UserError as check_adapters(), and if the folder also has
/// weights of the base model that differ from those of model.path. Returns the reader; null if adapter.path is not set.
std::shared_ptr<const SafetensorsReader> load_adapters(const WeightContext& context, const AdapterFiles& files);

/// Throws UserError if `folder` is a PEFT adapter, which users often confuse with a model. The message begins with
/// `found` and names the base model.
void refuse_adapter_as_model(const std::string& found, const std::string& folder);

}  // namespace blipft
