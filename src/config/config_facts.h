// A configuration as facts that the ranks compare, and as the run file of its run.
#pragma once

#include <string>

#include "agreement/same_run.h"
#include "blipft/comm.h"
#include "blipft/config.h"

namespace blipft {

/// The program (commit and build) and the effective configuration, key by key. Left out is what may differ from machine
/// to machine: paths of models and data (their content is compared), threads and the steps prepared ahead.
Facts config_facts(const Config& config);
/// Compares config_facts(). Called by all ranks before anything depends on the configuration.
void check_same_config(const Config& config, const World& world);

/// With what is relative to the working directory made absolute, as run_file_text() writes it.
Config with_absolute_paths(Config config);
/// The configuration of a run on `ranks` ranks as a run file: with absolute paths, and for just so many ranks.
std::string run_file_text(Config config, int64_t ranks, const std::string& run_id);

}  // namespace blipft
