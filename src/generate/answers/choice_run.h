// Multiple choice by log-likelihood: --evaluate with acc, acc_norm or acc_bytes among evaluate.metrics.
#pragma once

#include "blipft/comm.h"
#include "generate/weight_source.h"
#include "liveness/watchdog.h"

namespace blipft {

/// Scores the questions of a ChoiceSet. Called by all ranks. Throws UserError.
void answer_choices(const GenerationSource& source, const World& world, Watchdog& watchdog);

}  // namespace blipft
