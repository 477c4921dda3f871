// A storage policy for tests that read gradients.
#pragma once

#include <memory>

#include "blipft/config.h"
#include "engine/settings.h"
#include "engine/storage_policy.h"

namespace blipft::testing {

/// Keeps gradients after the step, for comparisons, also if a run would not hold them. Everything else is stored as the
/// config says, or without a config as precision and optimizer require.
struct HoldGradients : StoragePolicy {
  HoldGradients() = default;
  explicit HoldGradients(const Config& config) : of_run(make_storage_policy(config)) {}
  const Format* frozen_format(const Unit& unit, const Parameter& parameter) const override {
    return of_run ? of_run->frozen_format(unit, parameter) : nullptr;
  }
  StateSpec state(const Unit& unit, const Parameter& parameter, StateSpec spec) const override {
    return of_run ? of_run->state(unit, parameter, spec) : spec;
  }
  MemorySpace weights_space() const override { return of_run ? of_run->weights_space() : MemorySpace::device; }
  MemorySpace master_space() const override { return of_run ? of_run->master_space() : MemorySpace::device; }
  bool transient_gradients(bool) const override { return false; }
  std::unique_ptr<StoragePolicy> of_run;
};

}  // namespace blipft::testing
