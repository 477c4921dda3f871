// A storage policy for tests that look at gradients.
#pragma once

#include <memory>

#include "engine/settings.h"
#include "engine/storage_policy.h"

namespace blipft::testing {

/// Gradients are there after the step, for comparisons, also where a run would not hold them. All else is stored as the
/// config says, or, without one, as the precision and the optimizer do.
struct HoldGradients : StoragePolicy {
  HoldGradients() = default;
  explicit HoldGradients(const Config& config) : of_run(make_storage_policy(storage_settings(config))) {}
  const Format* frozen_format(const Unit& unit, const Parameter& parameter) const override {
    return of_run ? of_run->frozen_format(unit, parameter) : nullptr;
  }
  StateSpec state(const Unit& unit, const Parameter& parameter, StateSpec spec) const override {
    return of_run ? of_run->state(unit, parameter, spec) : spec;
  }
  Place weights_place() const override { return of_run ? of_run->weights_place() : Place::device; }
  Place master_place() const override { return of_run ? of_run->master_place() : Place::device; }
  bool transient_gradients(bool) const override { return false; }
  std::unique_ptr<StoragePolicy> of_run;
};

}  // namespace blipft::testing
