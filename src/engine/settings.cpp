// Objects and settings of a run; see settings.h.
#include "engine/settings.h"

#include <cmath>

#include "blipft/error.h"

namespace blipft {

PrecisionTypes precision_types(Precision precision) {
  switch (precision) {
    case Precision::f32_true: return {DType::f32, DType::f32, DType::f32, false};
    case Precision::bf16_true: return {DType::bf16, DType::bf16, DType::bf16, false};
    case Precision::bf16_mixed: return {DType::bf16, DType::f32, DType::f32, true};
  }
  throw Error("unknown precision");
}

PrecisionTypes precision_types(const EngineSettings& config) {
  const bool exact = config.adapter.kind != AdapterKind::none && config.adapter.dtype == AdapterDtype::f32;
  if (exact && config.train.precision == Precision::bf16_true) return precision_types(Precision::bf16_mixed);
  return precision_types(config.train.precision);
}

StrategyKind strategy_of(const EngineSettings& config, int64_t ranks) {
  if (config.parallel.strategy != StrategyKind::automatic) return config.parallel.strategy;
  return ranks == 1 ? StrategyKind::single : StrategyKind::ddp;
}

ModelSettings model_settings(const EngineSettings& config) {
  ModelSettings settings{precision_types(config).compute, config.model.freeze,
                         {config.train.act_ckpt}, config.train.dropout, {}};
  settings.pictures = config.model.pictures;
  const AdapterSection& adapter = config.adapter;
  if (adapter.kind == AdapterKind::none) return settings;
  const double rank = static_cast<double>(adapter.r);
  settings.adapter = {adapter.r, static_cast<float>(adapter.alpha / (adapter.rslora ? std::sqrt(rank) : rank)),
                      config.train.dropout ? static_cast<float>(adapter.dropout) : 0, adapter.targets,
                      !adapter.path.empty()};
  return settings;
}

}  // namespace blipft
