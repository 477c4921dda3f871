// train(): a training run, from its configuration to the saved model.
#pragma once

#include "blipft/comm.h"
#include "blipft/config.h"

namespace blipft {

/// Trains as `config` says. Returns the process' exit code: 0, or 75 when the run was asked to stop and has written a
/// checkpoint. Errors that all ranks know of are AgreedError, others concern the throwing rank alone.
int train(const Config& config, const World& world);

}  // namespace blipft
