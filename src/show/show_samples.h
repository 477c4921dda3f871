// --show: what a run would train on, without weights and without a GPU.
#pragma once

#include <cstdint>

#include "blipft/config.h"

namespace blipft {

/// Prints `samples` of the training samples of `config`, the first ones or random ones, and the lengths of all. Throws
/// UserError, after all else is printed, if a sample cannot be read and would end the run.
void show_samples(const Config& config, int64_t samples, bool random);

}  // namespace blipft
