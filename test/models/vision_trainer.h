// A golden model with pictures (vision_golden.h), fed with the samples of its case.
#pragma once

#include <algorithm>

#include "engine/engine.h"
#include "engine/settings.h"
#include "models/vision_golden.h"
#include "ops/bf16.h"
#include "pictures/patch_positions.h"
#include "pictures/picture_patches.h"
#include "plan/memory_plan.h"
#include "support/choice_of.h"
#include "support/gpu_or_skip.h"
#include "support/hold_gradients.h"
#include "support/host_values.h"
#include "weights/adapter_files.h"
#include "weights/weights.h"

namespace blipft::testing {

/// The samples of a case as a model with these inputs reads them.
struct VisionSamples {
  std::vector<BatchSample> samples;
  std::vector<std::vector<uint8_t>> patches;  // of all pictures
  TextShape shape;

  VisionSamples(const nlohmann::json& golden, const ModelInputs& inputs, int64_t padding) {
    const PatchSettings patch{.patch = inputs.patches.side, .merge = inputs.patches.merge};
    const int64_t cell = patch.patch * patch.merge;
    for (const nlohmann::json& one : golden["samples"]) {
      BatchSample& sample = samples.emplace_back();
      sample.key = static_cast<int64_t>(samples.size());
      sample.text.ids = one["ids"].get<std::vector<int32_t>>();
      sample.text.is_label = one["label"].get<std::vector<uint8_t>>();
      sample.text.is_label[0] = 0;
      int64_t at = 0;
      for (const nlohmann::json& picture : one["pictures"]) {
        const int64_t height = picture[1], width = picture[2];
        const Image image{height, width, named_picture(picture[0], height, width)};
        patches.emplace_back(static_cast<size_t>(height * width * 3));
        cut_patches(image, patch, patches.back().data());
        const auto found = std::find(sample.text.ids.begin() + at, sample.text.ids.end(), inputs.text.picture_id);
        at = found - sample.text.ids.begin();
        sample.text.pictures.push_back({at, height / cell, width / cell, patches.back().data()});
        at += sample.text.pictures.back().cells();
        add_picture(sample.text.pictures.back(), inputs.patches);
      }
      shape.tokens = std::max(shape.tokens, sample.text.size());
      shape.packed_rows += sample.text.size();
    }
    shape.packed_rows += std::min(padding, shape.tokens * std::ssize(samples) - shape.packed_rows);
    PictureShape& pictures = shape.pictures;
    if (pictures.count == 0) pictures.largest = 1;
    if (pictures.count == 0 || padding > 0) {  // padding: two pictures, and windows of a cell
      pictures.rows += 2 * pictures.largest, pictures.count += 2, pictures.windows += 2 * pictures.largest;
    }
  }

 private:
  void add_picture(const PictureSegment& picture, const PatchInputs& in) {
    PictureShape& all = shape.pictures;
    const PatchGrid grid{picture.height * in.merge, picture.width * in.merge};
    all.rows += picture.cells(), all.count += 1, all.largest = std::max(all.largest, picture.cells());
    if (in.window > 0) all.windows += std::ssize(window_order({&grid, 1}, in.merge, in.window).starts) - 1;
  }
};

/// How a case is run.
struct VisionRun {
  bool adapter = false;                    // trains the adapter of the case
  Precision precision = Precision::f32_true;
  int64_t padding = 0;                     // rows of text; not 0: pictures of padding too
  const char* act_ckpt = "none";
  std::vector<std::string> freeze = {};
  std::vector<std::string> targets = {};   // of a new adapter
  void (*change)(Config& config) = nullptr;
  DeviceKind device = DeviceKind::cpu;
};

struct VisionTrainer {
  VisionTrainer(const nlohmann::json& golden, const VisionRun& run) {
    write_vision_model(golden, folder);
    set_config(golden, run);
    const bool gpu = run.device == DeviceKind::cuda;
    device = gpu ? make_cuda_device(0) : make_cpu_device(0);
    device->bind_thread();
    ops = gpu ? make_cuda_ops(*device, "") : make_cpu_ops();
    comm = make_self_comm(*device);
    optimizer = make_optimizer(config.train, 0);
    model = make_model(config.model.path, model_settings(config));
    samples = std::make_unique<VisionSamples>(golden, model->inputs(), run.padding);
    hold = std::make_unique<HoldGradients>(config);
    plan = plan_memory(config, *model, 1, 0, {samples->shape}, hold.get());
    arena = std::make_unique<Arena>(*device, *plan.arena);
    PixelStatistics statistics;
    for (size_t c = 0; c < 3; ++c) statistics.mean[c] = golden["mean"][c], statistics.std[c] = golden["std"][c];
    engine = std::make_unique<Engine>(EngineParts{config, model.get(), device.get(), ops.get(), comm.get(), arena.get(),
                                                  optimizer.get(), hold.get(), nullptr, statistics, plan.text_shapes},
                                      StrategyKind::single, ShardedSettings{});
    arena->commit();
    engine->bind();
    const WeightContext context{model->units(), &engine->store, engine->strategy.get(), device.get(), ops.get(), arena->scratch()};
    load_weights(context, SafetensorsReader(config.model.path), 1);
    load_adapters(context, {config.model, config.adapter, config});
    batch.layout = {model->inputs(), 1, std::ssize(samples->samples), samples->shape};
    batch.block = device->allocate_host(batch.layout.bytes());
    BatchWriter(0, false).write(batch.layout, samples->samples, batch.block);
  }
  ~VisionTrainer() {
    device->synchronize();
    device->free_host(batch.block);
  }
  VisionTrainer(const VisionTrainer&) = delete;
  VisionTrainer& operator=(const VisionTrainer&) = delete;

  StepResult step(double lr) {
    engine->program->launch(batch, lr);
    ++batch.step;
    StepResult result;
    REQUIRE(engine->program->finished(true, result));
    return result;
  }
  /// The values of each trained parameter, or of its gradient.
  std::map<std::string, std::vector<float>> trained(bool gradients) const {
    std::map<std::string, std::vector<float>> found;
    for (const Unit* unit : model->units()) {
      if (!unit->trainable) continue;
      const std::vector<float> flat = host_values(*device, gradients ? engine->store.gradient(*unit) : engine->store.weights(*unit));
      for (const Parameter& parameter : unit->parameters()) {
        const auto first = flat.begin() + parameter.offset;
        std::vector<float>& values = found[parameter.name];
        values.insert(values.end(), first, first + parameter.numel());
      }
    }
    return found;
  }

  TemporaryDirectory folder;
  Config config;
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Comm> comm;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Model> model;
  std::unique_ptr<VisionSamples> samples;
  std::unique_ptr<HoldGradients> hold;
  MemoryPlan plan;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Engine> engine;
  HostBatch batch;

 private:
  void set_config(const nlohmann::json& golden, const VisionRun& run) {
    config.model.path = folder.path.string();
    config.model.freeze = run.freeze;
    config.data.max_text_tokens = 1000;
    config.steps.batch_size = std::ssize(golden["samples"]);
    config.steps.accumulate_grad_batches = 1;
    config.train.precision = run.precision;
    config.train.act_ckpt = choice_of<LayerCheckpointing>(run.act_ckpt);
    config.train.dropout = false;
    config.train.eps = 1e-4;
    config.parallel.strategy = StrategyKind::single;
    config.trace.enabled = false;
    config.model.pictures = true;
    config.adapter.targets = run.targets;
    if (!run.targets.empty()) config.adapter.kind = AdapterKind::lora;
    if (run.change) run.change(config);
    if (!run.adapter) return;
    const nlohmann::json& lora = golden["lora"]["config"];
    config.adapter.kind = AdapterKind::lora;
    config.adapter.path = folder / "adapter";
    config.adapter.r = lora["r"];
    config.adapter.alpha = lora["lora_alpha"];
    config.adapter.targets = lora["target_modules"].get<std::vector<std::string>>();
  }
};

/// Compares values by name with [norm, probe] of a case. `floor`: below it, errors are not relative to the norm.
inline void check_measured(const std::map<std::string, std::vector<float>>& found, const nlohmann::json& expected, double tolerance,
                           double floor) {
  CHECK(found.size() == expected.size());
  for (const auto& [name, values] : found) {
    CAPTURE(name);
    REQUIRE(expected.contains(name));
    double square = 0;
    for (const float value : values) square += double{value} * value;
    const double norm = expected[name][0], probe = expected[name][1], bound = tolerance * std::max(norm, floor);
    CHECK(std::fabs(std::sqrt(square) - norm) <= bound);
    CHECK(std::fabs(named_probe(name, values) - probe) <= bound);
  }
}

/// How far f32 may be from a case's numbers; steps without a tolerance are not compared.
struct VisionTolerance {
  double gradient, losses, step;
};
/// A gradient is a sum of terms whose rounding errors are some 1e-6 of it, or of the largest terms: those of PyTorch in f32 are
/// as large (float32_distance). AdamW's eps of 1e-4 turns them into some 1e-5 of a step of 1e-3.
constexpr VisionTolerance kModelTolerance{2e-5, 2e-5, 2e-4};
/// The adapters of the cases are as large as the weights: pixels that differ by 1e-7 change gradients of the published models by
/// up to 1.7e-4, those of some drawn ones by ten times as much, and three steps multiply that.
constexpr VisionTolerance kAdapterTolerance{3e-3, 5e-3, 0};

/// Loss, gradients, and three AdamW steps of a case in f32, of the whole model or of its adapter. With `padding`, the
/// micro-batch has so many more rows of text, and pictures of padding.
inline void check_vision_case(const nlohmann::json& golden, bool adapter, int64_t padding, DeviceKind device = DeviceKind::cpu) {
  CAPTURE(golden["name"].dump());
  CAPTURE(adapter);
  const nlohmann::json& expected = adapter ? golden["lora"] : golden;
  const VisionTolerance tolerance = adapter ? kAdapterTolerance : kModelTolerance;
  const VisionRun run{.adapter = adapter, .padding = padding, .device = device};
  const std::vector<double> losses = expected["losses"];
  {
    VisionTrainer trainer(golden, run);
    CHECK(trainer.step(0).loss == doctest::Approx(losses[0]).epsilon(1e-5));
    double square = 0;
    for (const auto& [name, gradient] : expected["gradients"].items()) square += std::pow(gradient[0].get<double>(), 2);
    check_measured(trainer.trained(true), expected["gradients"], tolerance.gradient, 0.01 * std::sqrt(square));
  }
  VisionTrainer trainer(golden, run);
  std::map<std::string, std::vector<float>> before = trainer.trained(false);
  for (size_t i = 0; i < 3; ++i) CHECK(trainer.step(1e-3).loss == doctest::Approx(losses[i]).epsilon(tolerance.losses));
  std::map<std::string, std::vector<float>> changes = trainer.trained(false);
  for (auto& [name, values] : changes) {
    // PyTorch does not even decay a tower that no sample has pictures for.
    const bool still = expected["steps"][name][0] == 0;
    for (size_t i = 0; i < values.size(); ++i) values[i] = still ? 0 : values[i] - before[name][i];
  }
  if (tolerance.step > 0) check_measured(changes, expected["steps"], tolerance.step, 5e-3);
  CHECK(trainer.step(0).loss == doctest::Approx(losses[3]).epsilon(tolerance.losses));
}

}  // namespace blipft::testing
