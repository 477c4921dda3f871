// Conversion of a Config to the objects and settings of a run.
#pragma once

#include <memory>
#include <string>

#include "blipft/config.h"
#include "blipft/model.h"
#include "blipft/optimizer.h"
#include "blipft/store.h"
#include "engine/room_settings.h"

namespace blipft {

/// Returns the dtypes of a run, as train.precision specifies. With adapter.dtype, adapters may have f32 weights
/// although products are in bf16.
PrecisionTypes precision_types(Precision precision);
PrecisionTypes precision_types(const Config& config);

/// Makes the optimizer of train.optim. If it is unknown, throws UserError with the known names.
std::unique_ptr<Optimizer> make_optimizer(const TrainSection& train);

/// Returns the learning rate from train.lr, lr_schedule, warmup_steps and warmup_ratio; see LearningRateSchedule.
double learning_rate(const TrainSection& train, int64_t step, int64_t total);

/// Returns the strategy on `ranks` ranks, with parallel.strategy=auto resolved.
StrategyKind strategy_of(const Config& config, int64_t ranks);

/// Returns the model settings of the config.
ModelSettings model_settings(const Config& config);

/// Makes the models of a run. The constructor reads the model folder; make() reads no files.
class RunModel {
 public:
  /// Reads config.model.path. Throws UserError.
  explicit RunModel(const Config& config);
  /// `untied_head` as in ModelSettings.
  RunModel(ModelFactory make, bool untied_head) : make_(std::move(make)), untied_head_(untied_head) {}
  /// Makes the model with the settings of `config`, whose model.path must be the same folder. Throws UserError if
  /// model.freeze or model.quantize do not match its parameter groups.
  std::unique_ptr<Model> make(const Config& config) const { return make(config, model_settings(config)); }
  /// Makes the model with `settings`, which replace the config's.
  std::unique_ptr<Model> make(const Config& config, ModelSettings settings) const;

 private:
  ModelFactory make_;
  bool untied_head_;
};
inline std::unique_ptr<Model> make_model(const Config& config) { return RunModel(config).make(config); }
/// Throws UserError if the run saves a whole model with random initial weights: the other tensors of the folder
/// (FamilySpec::kept_tensors), which a saved model contains unchanged, would be missing.
void check_saved_parts(const Config& config);

}  // namespace blipft
