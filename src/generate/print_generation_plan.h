// --plan with --generate or --evaluate: what generation would take, and what fits.
#pragma once

#include "blipft/config.h"

namespace blipft {

/// Prints the memory plan of generation on `ranks` ranks (0: as the config says) with GPUs of `gpu_gib` GiB (0: the GPU of this
/// machine, else an H200's), and how many texts of which length fit; with `fit` the largest numbers for several lengths alone.
/// Needs no GPU and no weights. Whether it fits.
bool print_generation_plan(const Config& config, int64_t ranks, double gpu_gib, bool fit);

}  // namespace blipft
