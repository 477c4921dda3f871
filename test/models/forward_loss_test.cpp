// Forward and loss without gradients: the loss of forward_backward without dropout, in less memory.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>

#include "blipft/checkpoint.h"
#include "blipft/data.h"
#include "blipft/philox.h"
#include "data/text_shapes.h"
#include "memory/memory_plan.h"
#include "run/weights.h"
#include "support/text_model.h"

using namespace blipft;
using testing::TextModel;

namespace {

using MakeModel = std::function<std::unique_ptr<Model>(const ModelSettings&)>;

/// Four samples of different lengths, the same for every layout.
std::vector<char> make_block(const BatchLayout& layout) {
  std::vector<char> block(static_cast<size_t>(layout.bytes()));
  std::vector<BatchSample> samples;
  for (const int64_t length : {9, 2, 12, 5}) {
    BatchSample sample{{}, 1000 + length};
    for (int32_t t = 0; t < length; ++t) sample.text.ids.push_back(4 + static_cast<int32_t>(7 * length + 5 * t) % 40);
    for (int64_t t = 0; t < length; ++t) sample.text.learnt.push_back(t != 3);
    samples.push_back(std::move(sample));
  }
  const Tensor pixels = layout.whole(BatchPart::pixels, block.data());
  for (int64_t i = 0; i < (pixels ? pixels.numel() : 0); ++i)
    pixels.as<uint8_t>()[i] = static_cast<uint8_t>(philox({static_cast<uint32_t>(i), 0, 0, 0}, 3, 1).x);
  BatchWriter(1, false).write(layout, samples, block.data());
  return block;
}

/// One model with its memory, on a device; `blueprint` null: the dry run.
struct Rig {
  Rig(const MakeModel& make, const ModelSettings& settings, const BatchLayout& of, const Rig* blueprint)
      : layout(of), device(blueprint ? make_cpu_device(1) : make_plan_device()),
        ops(blueprint ? make_cpu_ops() : make_plan_ops()), comm(make_self_comm(*device)), model(make(settings)) {
    arena = blueprint ? std::make_unique<Arena>(*device, *blueprint->arena) : std::make_unique<Arena>(*device);
    optimizer = make_optimizer(TrainSection{});
    const Precision precision = settings.compute == DType::f32 ? Precision::f32_true : Precision::bf16_true;
    store = std::make_unique<ParameterStore>(StoreContext{device.get(), ops.get(), arena.get(), model->units(),
                                                          PrecisionTypes::of(precision), optimizer.get()});
    strategy = make_strategy(
        "single", {device.get(), ops.get(), comm.get(), arena.get(), store.get(), model->units(), nullptr}, {});
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
    *weight.as<float>() = 0.125f;
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

struct Losses {
  float training, evaluation;
  int64_t training_peak, evaluation_peak;
};

Losses losses(const MakeModel& make, const ModelSettings& settings, const TextShape& text) {
  const BatchLayout layout(make(settings)->inputs(), 1, 4, text);
  const Rig plan(make, settings, layout, nullptr);
  Rig rig(make, settings, layout, &plan);
  const float evaluation = rig.loss_of(false), training = rig.loss_of(true);
  CHECK(rig.loss_of(false) == evaluation);  // what training leaves behind does not matter
  return {training, evaluation, plan.arena->peak_transient(Rig::pass(true)),
          plan.arena->peak_transient(Rig::pass(false))};
}

void check(const MakeModel& make, ModelSettings settings, const TextShape& text, bool drops) {
  settings.dropout = false;
  const Losses plain = losses(make, settings, text);
  CHECK(plain.training > 0.1f);
  CHECK(plain.evaluation == plain.training);  // the same operations in the same order
  CHECK(plain.evaluation_peak < plain.training_peak);
  settings.dropout = true;
  const Losses dropped = losses(make, settings, text);
  CHECK(dropped.evaluation == plain.evaluation);
  CHECK((dropped.training != plain.training) == drops);
}

const TextShape kShapes[] = {{12}, {12, 32}};

}  // namespace

TEST_SUITE("forward loss") {
  TEST_CASE("BLIP-2: the loss of a training step without dropout, in less memory") {
    for (const char* name : {"blip2_odd", "blip2_untied"})
      for (const TextShape& text : kShapes)
        for (const DType compute : {DType::f32, DType::bf16}) {
          CAPTURE(name);
          CAPTURE(text.packed_rows);
          const MakeModel make = [&](const ModelSettings& settings) {
            return make_model(concat("test/golden/", name), settings);
          };
          check(make, {compute}, text, true);
          check(make, {compute, {}, {ActivationCheckpointing::Kind::full}}, text, true);
          check(make, {compute, {"vision"}}, text, true);
          check(make, {compute, {"vision", "qformer"}}, text, true);
        }
  }

  TEST_CASE("LLaMA: the same, without anything to drop") {
    for (const char* name : {"llama_mha", "llama_gqa", "llama_qwen2"})
      for (const TextShape& text : kShapes)
        for (const DType compute : {DType::f32, DType::bf16}) {
          CAPTURE(name);
          CAPTURE(text.packed_rows);
          const MakeModel make = [&](const ModelSettings& settings) {
            return make_model(concat("test/golden/", name), settings);
          };
          check(make, {compute}, text, false);
          check(make, {compute, {}, {ActivationCheckpointing::Kind::full}}, text, false);
          check(make, {compute, {"embeddings"}}, text, false);
        }
  }

  TEST_CASE("a text-only model: the same") {
    const MakeModel make = [](const ModelSettings& settings) {
      return std::make_unique<TextModel>(TextModel::Sizes{.dropout = 0.2f}, settings);
    };
    for (const TextShape& text : kShapes) check(make, {DType::f32}, text, true);
  }

  TEST_CASE("memory of an evaluation does not grow with the layers") {
    int64_t evaluation[2], training[2];
    for (const int64_t layers : {2, 8}) {
      const MakeModel make = [&](const ModelSettings& settings) {
        return std::make_unique<TextModel>(TextModel::Sizes{.layers = layers}, settings);
      };
      const Losses found = losses(make, {DType::f32}, {12});
      evaluation[layers == 8] = found.evaluation_peak;
      training[layers == 8] = found.training_peak;
    }
    CHECK(evaluation[1] == evaluation[0]);
    CHECK(training[1] > 2 * training[0]);
  }
}
