// What a run file says of how parameters and states are stored.
#pragma once

#include <memory>

#include "blipft/config.h"
#include "blipft/model.h"
#include "blipft/store.h"
#include "engine/engine_settings.h"

namespace blipft {

std::unique_ptr<StoragePolicy> make_storage_policy(const StorageSettings& settings);

/// Throws UserError when the run file wants `model`'s frozen weights quantised and none of its layers is frozen, and
/// when it offloads states and there are none.
void check_storage(const Config& config, const Model& model);

}  // namespace blipft
