// The storage policy of a run: the formats and locations of parameters and states.
#pragma once

#include <memory>

#include "blipft/config.h"
#include "blipft/model.h"
#include "blipft/store.h"
#include "engine/engine_settings.h"

namespace blipft {

std::unique_ptr<StoragePolicy> make_storage_policy(const StorageSettings& settings);

/// Throws UserError if the run file quantizes frozen weights but no layer of `model` is frozen, or offloads optimizer
/// states but the optimizer has none.
void check_storage(const Config& config, const Model& model);

}  // namespace blipft
