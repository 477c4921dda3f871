// The settings with which weights generate texts: those of the run that trained them.
#pragma once

#include "blipft/config.h"

namespace blipft {

/// Returns `config` with the values that the run of its weights had for keys_of_a_run(), except keys that the command
/// line set, and data.val_split_fraction, which with_held_out_of_run() settles. Of an adapter also the run's
/// model.path, if that folder is there. Each value that changes is noted. Returns `config` itself if the weights are of
/// no known run. Throws UserError if the run's configuration cannot be read.
Config with_settings_of_run(const Config& config);

}  // namespace blipft
