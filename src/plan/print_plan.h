// --plan and --plan --fit: the memory of a run, and settings that fit.
#pragma once

#include "blipft/config.h"

namespace blipft {

/// Prints the memory plan of `config` for `ranks` ranks (0: as the config says) on a GPU of `gpu_gib` GiB (0: this
/// machine's GPU, or an H200 without one). Returns true if the plan fits. Needs no GPU and no weights. `node_ranks`:
/// ranks of a machine, for parallel.shard_ranks=node (0: the number of GPUs of this machine).
bool print_plan(const Config& config, int64_t ranks, int64_t node_ranks, double gpu_gib);

/// Prints settings that fit a GPU of `gpu_gib` GiB, the fastest first. Returns true if any does. Arguments as
/// print_plan().
bool print_fit(const Config& config, int64_t ranks, int64_t node_ranks, double gpu_gib);

}  // namespace blipft
