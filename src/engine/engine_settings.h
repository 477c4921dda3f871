// EngineSettings: the settings of an engine, as numbers and enums.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blipft/choices.h"
#include "blipft/store.h"

namespace blipft {

/// The storage of weights and states, if it differs from the compute dtype on the device.
struct StorageSettings {
  const Format* frozen_weights = nullptr;  ///< format of frozen layers' matrices; null: the compute dtype
  std::vector<std::string> groups;         ///< parameter groups with this format; empty: all
  Place weights = Place::device;
  Place states = Place::device;            ///< location of optimizer states and master weights
};

/// Settings of matrix products in fp8.
struct Fp8EngineSettings {
  bool enabled = false;
  DType gradients = DType::f8e4m3;         ///< dtype of the gradients of layers' outputs
  int64_t min_size = 0;                  ///< see Fp8Settings
  std::vector<std::string> excluded;
  bool counts = false;                     ///< true if the trace records statistics of the factors
};

/// The collectives in which the GPUs of a machine access each other's memory.
struct PeerMemorySettings {
  bool gathers = true, reductions = true;
};

struct EngineSettings {
  PrecisionTypes types{};
  int64_t batch_size = 1, micro_batches = 1;
  uint64_t seed = 0;
  LossNormalization loss_normalization = LossNormalization::tokens;
  float max_gradient_norm = 0;             ///< as Strategy::begin_step()
  bool validates = false;
  bool cuda_graph = true;
  bool offloads_activations = false;
  StorageSettings storage;
  Fp8EngineSettings fp8;
};

}  // namespace blipft
