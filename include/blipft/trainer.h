// train() runs a complete training, from its configuration to the saved model.
#pragma once

#include "blipft/comm.h"
#include "blipft/config.h"

namespace blipft {

/// Trains with the settings of `config`. Returns the exit code of the process: 0, or 75 if the run was requested to
/// stop and has written a checkpoint. Throws AgreedError for errors that all ranks know of; other exceptions concern
/// the throwing rank alone.
int train(const Config& config, const World& world);

}  // namespace blipft
