// Trainer: a whole run. Only the trainer sees all the parts.
#pragma once

#include "blipft/comm.h"
#include "blipft/config.h"

namespace blipft {

/// Trains as `config` says. Returns the process' exit code: 0, or 75 when the run was asked to stop and has written a
/// checkpoint. Errors that all ranks know of are AgreedError, others concern the throwing rank alone.
int train(const Config& config, const World& world);

/// Writes the model (or adapters) that the run of the checkpoint in `folder` would have saved after its steps, under
/// output.path, which `overrides` give. On the CPU, by one rank; needs the model directory that the run began with.
void export_model(const std::string& folder, const std::vector<std::string>& overrides, const World& world);

/// Prints the memory plan of `config` for `ranks` ranks (0: as the config says) on a GPU of `gpu_gib` GiB (0: the GPU
/// of this machine, else of an H200), and whether it fits. Needs no GPU and no weights. `node_ranks`: of a machine, for
/// parallel.shard_ranks=node (0: as many as GPUs are here).
bool print_plan(const Config& config, int64_t ranks, int64_t node_ranks, double gpu_gib);

}  // namespace blipft
