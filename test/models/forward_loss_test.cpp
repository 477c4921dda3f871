// Forward and loss without gradients: the loss of forward_backward without dropout, in less memory.
#include <doctest/doctest.h>

#include "models/model_rig.h"
#include "support/golden_files.h"
#include "support/text_model.h"

using namespace blipft;
using testing::TextModel;

namespace {

using testing::MakeModel;
using testing::Rig;

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
            return make_model(testing::golden_path(name), settings);
          };
          check(make, {compute}, text, true);
          check(make, {compute, {}, {LayerCheckpointing::full}}, text, true);
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
            return make_model(testing::golden_path(name), settings);
          };
          check(make, {compute}, text, false);
          check(make, {compute, {}, {LayerCheckpointing::full}}, text, false);
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
