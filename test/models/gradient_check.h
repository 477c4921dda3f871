// Gradients of a small model against differences of its loss, and recomputation to the same bits.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "models/model_rig.h"
#include "support/choice_of.h"

namespace blipft::testing {

/// One run in f32, without updates.
struct Run {
  Run(const MakeModel& of, bool dropout, const TextShape& text, const char* checkpointing)
      : settings{.checkpointing = {choice_of<LayerCheckpointing>(checkpointing)}, .dropout = dropout},
        make(of), layout(make(settings)->inputs(), 1, 4, text), plan(make, settings, layout, nullptr),
        rig(make, settings, layout, &plan) {}
  ModelSettings settings;
  MakeModel make;
  BatchLayout layout;
  Rig plan, rig;

  std::vector<float> gradients(const Unit& unit) {
    const Tensor tensor = rig.store->gradient(unit);
    return {tensor.as<float>(), tensor.as<float>() + tensor.numel()};
  }
};

/// For each parameter, the derivative of the loss along a random direction: from its gradient and from differences. With a
/// step of 1e-2 of a weight's size the difference is off by some 1e-4 of what curvature there is, and by the loss's rounding,
/// 1e-6 of it over the step.
inline void check_gradients(const MakeModel& make, bool dropout, const TextShape& text) {
  Run run(make, dropout, text, "none");
  run.rig.loss_of(true);
  std::vector<std::vector<float>> gradients;
  for (const Unit* unit : run.rig.model->units()) gradients.push_back(run.gradients(*unit));
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const Unit* unit : run.rig.model->units()) {
    const std::vector<float>& gradient = gradients[static_cast<size_t>(unit->index)];
    for (const Parameter& parameter : unit->parameters()) {
      CAPTURE(parameter.name);
      float* const weights = run.rig.store->weights(*unit).as<float>() + parameter.offset;
      const size_t n = static_cast<size_t>(parameter.numel());
      const std::vector<float> before(weights, weights + n);
      std::vector<float> direction(n);
      double expected = 0, norm = 0;
      for (size_t i = 0; i < n; ++i) {
        direction[i] = normal(random) / std::sqrt(static_cast<float>(n));
        const double g = static_cast<double>(gradient[static_cast<size_t>(parameter.offset) + i]);
        expected += g * static_cast<double>(direction[i]), norm += g * g;
      }
      double loss[2];
      constexpr float kStep = 1e-2f;
      for (int side = 0; side < 2; ++side) {
        for (size_t i = 0; i < n; ++i) weights[i] = before[i] + (side ? -kStep : kStep) * direction[i];
        loss[side] = static_cast<double>(run.rig.loss_of(true));
      }
      std::memcpy(weights, before.data(), n * sizeof(float));
      const double found = (loss[0] - loss[1]) / (2 * static_cast<double>(kStep));
      const double rounding = 4e-7 * std::fabs(loss[0]) / static_cast<double>(kStep);
      CHECK(std::fabs(found - expected) <= 2e-2 * std::sqrt(norm / static_cast<double>(n)) + 4 * rounding);
    }
  }
}

inline void check_recomputation(const MakeModel& make, bool dropout, const TextShape& text) {
  Run kept(make, dropout, text, "none");
  const float loss = kept.rig.loss_of(true);
  for (const char* checkpointing : {"half", "full"}) {
    CAPTURE(checkpointing);
    Run again(make, dropout, text, checkpointing);
    CHECK(again.rig.loss_of(true) == loss);
    CHECK(again.plan.arena->peak_transient(Rig::pass(true)) <= kept.plan.arena->peak_transient(Rig::pass(true)));
    for (const Unit* unit : kept.rig.model->units()) CHECK(again.gradients(*unit) == kept.gradients(*unit));
    CHECK(again.rig.loss_of(false) == kept.rig.loss_of(false));
  }
}

}  // namespace blipft::testing
