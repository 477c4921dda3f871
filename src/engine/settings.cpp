// Keys of a run file as settings of the parts below; see settings.h.
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

PrecisionTypes precision_types(const Config& config) {
  const bool exact = config.adapter.kind != AdapterKind::none && config.adapter.dtype == AdapterDtype::f32;
  if (exact && config.train.precision == Precision::bf16_true) return precision_types(Precision::bf16_mixed);
  return precision_types(config.train.precision);
}

std::unique_ptr<Optimizer> make_optimizer(const TrainSection& train) {
  return make_optimizer(train.optim, {.beta1 = train.beta1, .beta2 = train.beta2, .eps = train.eps,
                                      .weight_decay = train.weight_decay, .momentum = train.momentum,
                                      .decay_norms_and_biases = train.decay_norms_and_biases,
                                      .stochastic_rounding = train.stochastic_rounding,
                                      .seed = static_cast<uint64_t>(train.seed)});
}

double learning_rate(const TrainSection& train, int64_t step, int64_t total) {
  return learning_rate(LearningRateSchedule{train.lr, train.lr_schedule, train.warmup_steps, train.warmup_ratio}, step, total);
}

StrategyKind strategy_of(const Config& config, int64_t ranks) {
  if (config.parallel.strategy != StrategyKind::automatic) return config.parallel.strategy;
  return ranks == 1 ? StrategyKind::single : StrategyKind::ddp;
}

StorageSettings storage_settings(const Config& config) {
  const ModelSection& model = config.model;
  const auto place_of_data = [&](OffloadedData data) { return offloads(config, data) ? Place::host : Place::device; };
  StorageSettings settings{.frozen_weights = nullptr, .groups = model.quantize_groups,
                           .weights = place_of_data(OffloadedData::parameters),
                           .states = place_of_data(OffloadedData::optimizer)};
  if (model.quantize != WeightQuantization::none)
    settings.frozen_weights = &format_by_name(concat(model.quantize, model.double_quantize ? "_double" : ""));
  return settings;
}

EngineSettings engine_settings(const Config& config) {
  const TrainSection& train = config.train;
  return {.types = precision_types(config),
          .batch_size = train.batch_size,
          .micro_batches = train.accumulate_grad_batches,
          .seed = static_cast<uint64_t>(train.seed),
          .loss_normalization = train.loss_normalization,
          .max_gradient_norm = static_cast<float>(largest_norm(train)),
          .validates = validates(config),
          .cuda_graph = config.parallel.cuda_graph,
          .offloads_activations = offloads(config, OffloadedData::activations),
          .storage = storage_settings(config),
          .fp8 = {.enabled = train.matmul == MatmulType::fp8,
                  .gradients = train.fp8_gradients == Fp8GradientType::e4m3 ? DType::f8e4m3 : DType::f8e5m2,
                  .least_size = train.fp8_least_size,
                  .excluded = train.matmul_exclude,
                  .counts = config.trace.fp8_every > 0}};
}

PeerMemory peer_memory(const Config& config) {
  return {.gathers = config.parallel.direct_gathers, .reductions = config.parallel.direct_reductions};
}

ModelSettings model_settings(const Config& config) {
  ModelSettings settings{precision_types(config).compute, config.model.freeze,
                         {config.train.act_ckpt}, config.train.dropout, {}};
  const AdapterSection& adapter = config.adapter;
  if (adapter.kind == AdapterKind::none) return settings;
  const double rank = static_cast<double>(adapter.r);
  settings.adapter = {adapter.r, static_cast<float>(adapter.alpha / (adapter.rslora ? std::sqrt(rank) : rank)),
                      config.train.dropout ? static_cast<float>(adapter.dropout) : 0, adapter.targets,
                      !adapter.path.empty()};
  return settings;
}

}  // namespace blipft
