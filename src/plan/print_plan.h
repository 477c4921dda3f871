// --plan and --plan --fit: what a run would take, and what fits.
#pragma once

#include "blipft/config.h"

namespace blipft {

/// Prints the memory plan of `config` for `ranks` ranks (0: as the config says) on a GPU of `gpu_gib` GiB (0: the GPU
/// of this machine, else of an H200), and whether it fits. Needs no GPU and no weights. `node_ranks`: of a machine, for
/// parallel.shard_ranks=node (0: as many as GPUs are here).
bool print_plan(const Config& config, int64_t ranks, int64_t node_ranks, double gpu_gib);

/// Prints settings that fit a GPU of `gpu_gib` GiB, the fastest first; the others as above. Returns whether any does.
bool print_fit(const Config& config, int64_t ranks, int64_t node_ranks, double gpu_gib);

}  // namespace blipft
