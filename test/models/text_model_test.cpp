// A model without pictures and without rows before its text, from the dataset to the update: nothing but text is read,
// decoded or copied for it.
#include <doctest/doctest.h>

#include <cmath>

#include "blipft/loading.h"
#include "engine/settings.h"
#include "engine/step_program.h"
#include "plan/memory_plan.h"
#include "support/byte_tokenizer.h"
#include "support/choice_of.h"
#include "support/error_message.h"
#include "support/sandwich_model.h"
#include "support/text_model.h"
#include "weights/weights.h"

using namespace blipft;
using testing::ByteTokenizer;
using testing::TextModel;

namespace {

/// Questions that are only read, and their answers. No pictures.
class Questions final : public Dataset {
 public:
  bool all_labels = false;
  int64_t size() const override { return 12; }
  Sample read(int64_t index) const override {
    const char letter = static_cast<char>('a' + index % 6);
    return {concat("question ", index),
            {{std::string(static_cast<size_t>(1 + index % 5), letter) + "?", all_labels},
             {std::string(static_cast<size_t>(2 + index % 4), static_cast<char>(letter + 1)), true}},
            {}};
  }
};

std::shared_ptr<Tokenizer> ends_with_three() { return std::make_shared<ByteTokenizer>(std::vector<int32_t>{3}); }

Config text_config(const char* padding) {
  Config config;
  config.data.max_text_tokens = 12;
  config.data.text_padding = choice_of<TextPadding>(padding);
  config.data.shuffle = false;
  config.steps.batch_size = 3;
  config.steps.accumulate_grad_batches = 4;  // a step sees all samples
  config.train.precision = Precision::f32_true;
  config.train.optim = "sgd";
  config.train.weight_decay = 0;
  config.steps.max_epochs = 30;
  config.parallel.strategy = StrategyKind::single;
  config.trace.enabled = false;
  return config;
}

struct Trained {
  std::vector<double> losses, norms;
};

Trained train(Model& model, const Config& config, const std::shared_ptr<Dataset>& dataset, double lr) {
  const auto device = make_cpu_device(1);
  const auto ops = make_cpu_ops();
  const auto comm = make_self_comm(*device);
  const auto optimizer = make_optimizer(config.train, config.steps.seed);
  const std::vector<TextShape> shapes = possible_text_shapes(config);
  const MemoryPlan plan = plan_memory(config, model, 1, 0, shapes);
  Arena arena(*device, *plan.arena);
  Engine engine({.settings = config, .model = &model, .device = device.get(), .ops = ops.get(), .groups = comm.get(),
                 .arena = &arena, .optimizer = optimizer.get(), .text_shapes = shapes},
                StrategyKind::single, {});
  arena.commit();
  engine.bind();
  StepProgram& program = *engine.program;
  init_weights({model.units(), &engine.store, engine.strategy.get(), device.get(), ops.get(), arena.scratch()}, 3);
  const auto loader = make_data_loader(config, 0, 1, model.inputs(), shapes, ends_with_three(),
                                       {dataset}, *device);
  Trained trained;
  while (const HostBatch* batch = loader->next()) {
    program.launch(*batch, lr);
    program.batch_copied(true);
    loader->give_back(batch);
    StepResult result;
    REQUIRE(program.finished(true, result));
    trained.losses.push_back(result.loss);
    trained.norms.push_back(result.grad_norm);
  }
  return trained;
}
Trained train(const Config& config, const std::shared_ptr<Dataset>& dataset, double lr) {
  TextModel model({}, model_settings(config));
  return train(model, config, dataset, lr);
}

}  // namespace

TEST_SUITE("text model") {
  TEST_CASE("the head takes 64 Mi logits at a time, more where a sum in bf16 would be of more than 16 chunks") {
    LanguageHead head;
    head.output.out = 151936;              // 441 rows
    for (const bool rounded : {false, true}) {
      CHECK(head.chunk_rows(1, rounded) == 1);
      CHECK(head.chunk_rows(441, rounded) == 441);
      CHECK(head.chunk_rows(4096, rounded) == 410);  // 10 chunks
      CHECK(head.chunk_rows(16 * 441, rounded) == 441);
    }
    CHECK(head.chunk_rows(65536, true) == 4096);
    CHECK(head.chunk_rows(65536, false) == 440);
    CHECK(head.chunk_rows(200001, true) == 12501);
  }

  TEST_CASE("text alone runs through loader and step program, and is trained") {
    const auto questions = std::make_shared<Questions>();
    for (const char* padding : {"packed", "longest", "max"}) {
      CAPTURE(padding);
      const Trained trained = train(text_config(padding), questions, 0.5);
      REQUIRE(trained.losses.size() == 30);
      CHECK(trained.losses.back() < 0.3 * trained.losses.front());
      // Every step sees the same samples, so a small step lowers the loss by lr times the square of the gradient, but
      // for lr^2 times the curvature.
      const Trained small = train(text_config(padding), questions, 1e-4);
      const double predicted = 1e-4 * small.norms[0] * small.norms[0];
      CHECK(small.losses[0] - small.losses[1] == doctest::Approx(predicted).epsilon(0.02));
    }
  }

  TEST_CASE("a family that src/ does not know is trained too: norms around, windows, a tied and capped head") {
    for (const char* padding : {"packed", "max"}) {
      CAPTURE(padding);
      const Config config = text_config(padding);
      testing::SandwichModel model({}, model_settings(config));
      const Trained trained = train(model, config, std::make_shared<Questions>(), 0.5);
      REQUIRE(trained.losses.size() == 30);
      CHECK(trained.losses.back() < 0.5 * trained.losses.front());
    }
  }

  TEST_CASE("text alone: padding changes nothing, nor who shares a micro-batch") {
    const auto questions = std::make_shared<Questions>();
    const Trained packed = train(text_config("packed"), questions, 0.1);
    for (const char* padding : {"longest", "max"}) {
      const Trained padded = train(text_config(padding), questions, 0.1);
      // f32 sums over about 100 labels and 30 steps in another order
      for (size_t i = 0; i < packed.losses.size(); ++i)
        CHECK(padded.losses[i] == doctest::Approx(packed.losses[i]).epsilon(1e-5));
    }
  }

  TEST_CASE("text alone: a mean of micro-batch means is the same packed, for samples keep their micro-batch") {
    const auto questions = std::make_shared<Questions>();
    Config config = text_config("longest"), other = text_config("auto");
    config.steps.loss_normalization = other.steps.loss_normalization = LossNormalization::micro_batch;
    const Trained padded = train(config, questions, 0.1), packed = train(other, questions, 0.1);
    const Trained tokens = train(text_config("auto"), questions, 0.1);
    for (size_t i = 0; i < padded.losses.size(); ++i)    // f32 sums in another order, as above
      CHECK(packed.losses[i] == doctest::Approx(padded.losses[i]).epsilon(1e-5));
    CHECK(std::fabs(packed.losses[0] / tokens.losses[0] - 1) > 2e-5);  // more than that, so the two can be told apart
  }

  TEST_CASE("text alone: tokens that are no labels are not in the loss") {
    const auto questions = std::make_shared<Questions>(), everything = std::make_shared<Questions>();
    everything->all_labels = true;
    const Trained answers = train(text_config("packed"), questions, 0.5);
    const Trained all = train(text_config("packed"), everything, 0.5);
    // Random weights find all letters about as unlikely; rounding is 1e-6.
    CHECK(std::fabs(answers.losses[0] / all.losses[0] - 1) > 1e-4);
    CHECK(all.losses.back() > 2 * answers.losses.back());  // a question's first letter cannot be known
  }

  TEST_CASE("a model that reads pictures refuses samples without one, by name") {
    const auto device = make_cpu_device(1);
    const Config config = text_config("packed");
    const auto loader = make_data_loader(config, 0, 1, {.picture_size = 8, .text = {.vocabulary = 128}},
                                         possible_text_shapes(config), ends_with_three(),
                                         {std::make_shared<Questions>()}, *device);
    const std::string message = testing::message_of([&] { loader->next(); });
    CHECK_MESSAGE(message.find("question 0: found no picture") != std::string::npos, message);
  }
}
