// A small model with its memory on the CPU, without loader and step program: one micro-batch of four samples, its loss, its
// gradients.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "blipft/loading.h"
#include "blipft/model.h"
#include "blipft/philox.h"
#include "blipft/strategy.h"
#include "engine/settings.h"
#include "weights/weights.h"

namespace blipft::testing {

using MakeModel = std::function<std::unique_ptr<Model>(const ModelSettings&)>;

/// Four samples of different lengths, the same for every layout.
inline std::vector<BatchSample> rig_samples(const ModelInputs& inputs = {}) {
  std::vector<BatchSample> samples;
  for (const int64_t length : {9, 2, 12, 5}) {
    BatchSample sample{{}, 1000 + length};
    for (int32_t t = 0; t < length; ++t) sample.text.ids.push_back(4 + static_cast<int32_t>(7 * length + 5 * t) % 40);
    for (int64_t t = 0; t < length; ++t) sample.text.is_label.push_back(t != 3);
    if (inputs.has_source())               // 8, 9, 11 and 12 of them
      for (int64_t t = 0; t < 1 + (length * 5 + 10) % 12; ++t)
        sample.text.source.push_back(4 + static_cast<int32_t>(3 * length + 11 * t) % 40);
    if (inputs.instruction)                // 1, 4, 5 and 10 of them
      for (int64_t t = 0; t < 1 + (length * 2 + 2) % 11; ++t)
        sample.text.instruction.push_back(4 + static_cast<int32_t>(5 * length + 3 * t) % 30);
    samples.push_back(std::move(sample));
  }
  if (inputs.text.pictures)                // 13 rows in all
    for (const auto& [sample, picture] : {std::pair<size_t, PictureSegment>{0, {1, 2, 3}}, {2, {0, 1, 2}}, {2, {5, 2, 2}},
                                          {3, {3, 1, 1}}})
      samples[sample].text.pictures.push_back(picture);
  return samples;
}
/// The weight of each of their labels in the loss.
constexpr float kRigLossWeight = 0.125f;

inline std::vector<char> make_block(const BatchLayout& layout) {
  std::vector<char> block(static_cast<size_t>(layout.bytes()));
  const Tensor pixels = layout.whole(BatchField::pixels, block.data());
  for (int64_t i = 0; i < (pixels ? pixels.numel() : 0); ++i)
    pixels.as<uint8_t>()[i] = static_cast<uint8_t>(philox({static_cast<uint32_t>(i), 0, 0, 0}, 3, 1).x);
  BatchWriter(1, false).write(layout, rig_samples(layout.inputs()), block.data());
  return block;
}

/// One model with its memory, on a device; `blueprint` null: the dry run.
struct Rig {
  Rig(const MakeModel& make, const ModelSettings& settings, const BatchLayout& of, const Rig* blueprint)
      : layout(of), device(blueprint ? make_cpu_device(1) : make_plan_device()),
        ops(blueprint ? make_cpu_ops() : make_plan_ops()), comm(make_self_comm(*device)), model(make(settings)) {
    arena = blueprint ? std::make_unique<Arena>(*device, *blueprint->arena) : std::make_unique<Arena>(*device);
    optimizer = make_optimizer({}, 0);
    const Precision precision = settings.compute == DType::f32 ? Precision::f32_true : Precision::bf16_true;
    store = std::make_unique<ParameterStore>(StoreContext{device.get(), ops.get(), arena.get(), model->units(),
                                                          precision_types(precision), optimizer.get()});
    strategy = make_strategy(
        StrategyKind::single, {device.get(), ops.get(), comm.get(), arena.get(), store.get(), model->units(), nullptr}, {});
    block = arena->persistent(Owner::data, "batch", DType::u8, {layout.bytes()});
    scalars = arena->persistent(Owner::data, "scalars", DType::f32, {kStepScalars});
    loss = arena->persistent(Owner::data, "loss", DType::f32, {1});
    weight = arena->persistent(Owner::data, "loss weight", DType::f32, {1});
    workspace = arena->persistent(Owner::workspace, "workspace", DType::u8, {2 * kWorkspaceBytes});
    if (!blueprint) {
      for (const bool training : {true, false}) run(training);
      arena->plan(init_scratch_bytes());
      return;
    }
    arena->commit();
    for (Tensor* tensor : {&block, &scalars, &loss, &weight, &workspace}) *tensor = arena->resolve(*tensor);
    ops->set_workspace(workspace);
    store->bind();
    strategy->bind();
    init_weights({model->units(), store.get(), strategy.get(), device.get(), ops.get(), arena->scratch()}, 11);
    const std::vector<char> host = make_block(layout);
    std::memcpy(block.data, host.data(), host.size());
    *weight.as<float>() = kRigLossWeight;
  }

  static const char* pass(bool training) { return training ? "training" : "evaluation"; }

  void run(bool training) {
    Stream stream = device->compute_stream();
    arena->begin_pass(pass(training));
    const StepContext context{*ops, *device, *arena, *strategy, stream, device->side_stream(), device->create_event(),
                              device->create_event(), nullptr, 5};
    MicroBatch batch = layout.micro_batch(block.data, 0);
    batch.loss = loss;
    batch.loss_weight = weight;
    device->zero(loss.data, loss.bytes(), stream);
    strategy->begin_step(scalars, 1);      // clips, hence does not update before it is told to
    strategy->begin_micro_batch(0, 1);
    if (training) model->forward_backward(context, batch);
    else model->forward_loss(context, batch);
    strategy->finish_backward();
    arena->end_pass();
  }
  float loss_of(bool training) {
    run(training);
    return *loss.as<float>();
  }

  BatchLayout layout;
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Comm> comm;
  std::unique_ptr<Model> model;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<ParameterStore> store;
  std::unique_ptr<Strategy> strategy;
  Tensor block, scalars, loss, weight, workspace;
};

}  // namespace blipft::testing
