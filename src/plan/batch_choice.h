// What train.batch_size: auto becomes: the settings of a step that the program chooses.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "blipft/comm.h"
#include "blipft/device.h"
#include "plan/fit_search.h"

namespace blipft {

/// The settings that a choice makes.
struct ChosenSettings {
  int64_t batch_size = 0, micro_batches = 0;
  std::string act_ckpt, reshard;
  std::vector<std::string> offload;

  static ChosenSettings of(const Config& config);
  /// Of `values`, as config_values() gives them; without batch_size where one is missing.
  static ChosenSettings of(const std::vector<std::pair<std::string, std::string>>& values);
  /// Of text(). Throws Error on another text.
  static ChosenSettings of(const std::string& text);
  void apply(Config& config) const;
  /// "16 1 none step optimizer,activations"
  std::string text() const;
  /// "16 samples x 1 micro-batch, act_ckpt full, reshard step"
  std::string description() const;
  bool operator==(const ChosenSettings&) const = default;
};

/// `asked`, whose train.batch_size is auto, with something in its place under which data can be looked at: as many micro-batches
/// as it says, else of one sample each.
Config before_choice(const Config& asked, int64_t ranks);

/// Whether `config` may have these: keys that are given are the same, and they take a step's samples.
bool may_have(const Config& asked, int64_t ranks, const ChosenSettings& settings);

struct BatchChoice {
  Config config;                           ///< resolved
  std::string reason;                      ///< of one line
};

/// Chooses for ranks with so many bytes left, of the GPU and of the host for each. `kept`: what an earlier part of the run
/// chose, if any: it stays where it fits. Throws UserError when nothing fits.
BatchChoice choose_batch(const FitSearch& search, const Config& asked, int64_t ranks, int64_t gpu_bytes,
                         int64_t host_bytes, const ChosenSettings& kept);

/// "32 samples x 1 micro-batch: an estimated 0.131 s a step, 45.2 of 138.2 GiB; next 16 x 2: 0.147 s, 31.0 GiB". `rows`: those
/// that FitSearch::choose() found.
std::string choice_text(const std::vector<FitRow>& rows, int64_t gpu_bytes);

/// Bytes that a rank may plan for: what is free on its GPU, and what its process has there already; on CPUs half of what its
/// machine has left for it. The least of all ranks; called by all.
struct MemoryLeft {
  int64_t device = 0, host = 0;
};
MemoryLeft memory_left(const World& world, const Device& device, int64_t context_bytes);

}  // namespace blipft
