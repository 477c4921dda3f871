// Adapters in PEFT's form: a folder with adapter_config.json and adapter_model.safetensors.
#pragma once

#include <string>

#include "blipft/model.h"
#include "weights/weights.h"

namespace blipft {

/// The adapters of a run, and the model that they belong to.
struct AdapterFiles {
  std::string model_path;
  bool pretrained = true;                  ///< the model's weights are those of model_path
  int64_t r = 8;
  double alpha = 8, dropout = 0;
  bool rslora = false;
  std::string path;                        ///< PEFT folder to go on from; empty: none
  std::string place;                       ///< of adapter.path, for messages
};

/// adapter_config.json for the adapters of `units`; "" where there are none.
std::string adapter_config(const AdapterFiles& files, const Units& units);

/// Throws UserError when adapter.path, if it is given, has no adapters, or others than the run file describes: its settings,
/// and names and shapes of the tensors that `units` wait for. Reads no more than headers.
void check_adapters(const AdapterFiles& files, const Units& units);

/// Fills the adapters from adapter.path, if it is given. Throws UserError as check_adapters(), and when the folder also holds
/// weights of the model itself that differ from model.path's. Returns what has read them; null: none was given.
std::shared_ptr<const SafetensorsReader> load_adapters(const WeightContext& context, const AdapterFiles& files);

/// Throws UserError, which begins with `found` and names the base model, where `folder` holds what PEFT saves: it is often
/// taken for a model.
void refuse_adapter_as_model(const std::string& found, const std::string& folder);

}  // namespace blipft
