// The storage policy of a run: the formats and locations of parameters and states.
#pragma once

#include <memory>

#include "blipft/engine_settings.h"
#include "blipft/model.h"
#include "blipft/store.h"
#include "blipft/engine_settings.h"

namespace blipft {

std::unique_ptr<StoragePolicy> make_storage_policy(const EngineSettings& config);

/// Throws UserError if the run file quantizes frozen weights but no layer of `model` is frozen, or offloads optimizer
/// states but the optimizer has none.
void check_storage(const EngineSettings& config, const Model& model);

}  // namespace blipft
