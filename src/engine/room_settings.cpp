// Conversion of a Config to settings; see room_settings.h.
#include "engine/room_settings.h"

#include "blipft/error.h"
#include "engine/settings.h"

namespace blipft {

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
                  .min_size = train.fp8_least_size,
                  .excluded = train.matmul_exclude,
                  .counts = config.trace.fp8_every > 0}};
}

PeerMemorySettings peer_memory(const Config& config) {
  return {.gathers = config.parallel.direct_gathers, .reductions = config.parallel.direct_reductions};
}

LoadingSettings loading_settings(const Config& config) {
  const DataSection& data = config.data;
  const TrainSection& train = config.train;
  return {.keys = config,
          .model_path = config.model.path,
          .path = data.path,
          .val_path = data.val_path,
          .max_text_tokens = data.max_text_tokens,
          .text_padding = data.text_padding,
          .loss_on_padding = train.loss_on_padding,
          .batch_size = train.batch_size,
          .micro_batches = train.accumulate_grad_batches,
          .total_batch_size = train.total_batch_size,
          .loss_normalization = train.loss_normalization,
          .seed = static_cast<uint64_t>(train.seed),
          .shuffle = data.shuffle,
          .smoke = config.smoke_steps > 0,
          .val_split_fraction = data.val_split_fraction,
          .limit_train_batches = train.limit_train_batches,
          .limit_val_batches = train.limit_val_batches,
          .max_epochs = train.max_epochs,
          .max_steps = train.max_steps,
          .num_workers = data.num_workers,
          .prefetch_steps = data.prefetch_steps,
          .on_bad_sample = data.on_bad_sample,
          .exif_orientation = data.exif_orientation,
          .transparency = data.transparency};
}

AdapterFiles adapter_files(const Config& config) {
  const AdapterSection& adapter = config.adapter;
  return {.model_path = config.model.path,
          .pretrained = config.model.init == InitialWeights::pretrained,
          .r = adapter.r,
          .alpha = adapter.alpha,
          .dropout = adapter.dropout,
          .rslora = adapter.rslora,
          .path = adapter.path,
          .place = place_of(config, "adapter.path")};
}

}  // namespace blipft
