// Check for a run that is started again although it has ended.
#pragma once

#include <optional>
#include <string>

#include "blipft/comm.h"
#include "blipft/config.h"

namespace blipft {

/// Returns the line to print if checkpoint.resume=auto finds in output.path the run that `config` describes, with all
/// steps done and the model saved; then nothing is left to do. The last row of metrics.jsonl shows this. Called by all
/// ranks, which get the same text.
std::optional<std::string> ended_text(const Config& config, const World& world);

}  // namespace blipft
