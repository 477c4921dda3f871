// Multiple choice by log-likelihood: --evaluate with acc, acc_norm or acc_bytes among evaluate.metrics.
#pragma once

#include "blipft/comm.h"
#include "blipft/config.h"

namespace blipft {

/// Whether evaluate.metrics are about choices. Throws UserError naming the key where only some of them are.
bool asks_for_choices(const Config& config);

/// Scores the questions in generate.path, each with a query, choices and the index of the right one. Called by all ranks.
/// Throws UserError.
void answer_choices(const Config& config, const World& world);

}  // namespace blipft
