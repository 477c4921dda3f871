// A configuration as facts that the ranks compare, and as the run file of its run.
#pragma once

#include <string>

#include "agreement/same_run.h"
#include "blipft/comm.h"
#include "blipft/config.h"

namespace blipft {

/// Returns the program (commit and build) and the effective configuration, key by key. Values that may differ between
/// machines are left out: paths of models and data (their contents are compared), threads and steps prepared ahead.
Facts config_facts(const Config& config);
/// Compares config_facts(). All ranks must call it before anything depends on the configuration. Throws AgreedError.
void check_same_config(const Config& config, const World& world);

/// Returns `config` with absolute paths instead of paths relative to the working directory.
Config with_absolute_paths(Config config);
/// Returns the run file that gives a run on `ranks` ranks again: with absolute paths, and for this number of ranks.
std::string run_file_text(Config config, int64_t ranks, const std::string& run_id);

}  // namespace blipft
