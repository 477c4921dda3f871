// What the keys of a run file become for the parts below config/, which know no run file.
#pragma once

#include <memory>
#include <string>

#include "blipft/config.h"
#include "blipft/model.h"
#include "blipft/optimizer.h"
#include "blipft/store.h"
#include "engine/room_settings.h"

namespace blipft {

/// Dtypes of what a run trains: as train.precision says; adapters keep f32 weights beside bf16 products where
/// adapter.dtype asks for it.
PrecisionTypes precision_types(Precision precision);
PrecisionTypes precision_types(const Config& config);

/// The optimizer that train.optim names. Throws UserError naming the known ones.
std::unique_ptr<Optimizer> make_optimizer(const TrainSection& train);

/// Of train.lr, lr_schedule, warmup_steps and warmup_ratio; see LearningRateSchedule.
double learning_rate(const TrainSection& train, int64_t step, int64_t total);

/// The strategy that `auto` stands for on `ranks` ranks.
StrategyKind strategy_of(const Config& config, int64_t ranks);

/// Model settings that follow from the config.
ModelSettings model_settings(const Config& config);

/// The model of a run. Its folder is read once: what is made of it afterwards reads no file.
class RunModel {
 public:
  /// Throws UserError.
  explicit RunModel(const Config& config);
  /// `untied_head` as in ModelSettings.
  RunModel(ModelFactory make, bool untied_head) : make_(std::move(make)), untied_head_(untied_head) {}
  /// With the settings of a config of the same folder. Throws UserError if model.freeze or model.quantize do not fit its
  /// parameter groups.
  std::unique_ptr<Model> make(const Config& config) const { return make(config, model_settings(config)); }
  /// With other settings than the config's.
  std::unique_ptr<Model> make(const Config& config, ModelSettings settings) const;

 private:
  ModelFactory make_;
  bool untied_head_;
};
inline std::unique_ptr<Model> make_model(const Config& config) { return RunModel(config).make(config); }
/// Of a run: a saved model has the folder's other parts (FamilySpec::kept_tensors) as they were, which random weights do not have. Throws
/// UserError.
void check_saved_parts(const Config& config);

}  // namespace blipft
