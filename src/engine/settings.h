// The objects and settings of a run, by its EngineSettings.
#pragma once

#include <memory>
#include <string>

#include "blipft/engine_settings.h"
#include "blipft/store.h"

namespace blipft {

/// Returns the dtypes of a run, as train.precision specifies. With adapter.dtype, adapters may have f32 weights
/// although products are in bf16.
PrecisionTypes precision_types(Precision precision);
PrecisionTypes precision_types(const EngineSettings& config);

/// Returns the strategy on `ranks` ranks, with parallel.strategy=auto resolved.
StrategyKind strategy_of(const EngineSettings& config, int64_t ranks);

/// Returns how the model is to be made.
ModelSettings model_settings(const EngineSettings& config);

/// Throws UserError, with file and line and the nearest name, when model.freeze holds a name that is none of `groups`,
/// those of the model's parameters, or when it holds all of them.
void check_freeze(const EngineSettings& config, const std::vector<std::string>& groups);

/// Makes the models of a run. The constructor reads the model folder; make() reads no files.
class RunModel {
 public:
  /// Reads config.model.path. Throws UserError.
  explicit RunModel(const EngineSettings& config);
  /// `untied_head` as in ModelSettings.
  RunModel(ModelFactory make, bool untied_head) : make_(std::move(make)), untied_head_(untied_head) {}
  /// Makes the model with the settings of `config`, whose model.path must be the same folder. Throws UserError if
  /// model.freeze or model.quantize do not match its parameter groups.
  std::unique_ptr<Model> make(const EngineSettings& config) const { return make(config, model_settings(config)); }
  /// Makes the model with `settings`, not with model_settings().
  std::unique_ptr<Model> make(const EngineSettings& config, ModelSettings settings) const;

 private:
  ModelFactory make_;
  bool untied_head_;
};
inline std::unique_ptr<Model> make_model(const EngineSettings& config) { return RunModel(config).make(config); }

}  // namespace blipft
