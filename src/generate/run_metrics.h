// The metrics that a run file requests.
#pragma once

#include <string>
#include <vector>

#include "blipft/config.h"

namespace blipft {

/// Returns the default metrics of generated texts, for a run file that names none.
std::vector<std::string> fitting_metrics(bool pictures);
/// Returns the likelihood metrics that --evaluate computes in addition to the metrics of texts.
const std::vector<std::string>& loss_metrics();
/// Throws UserError with file and line if evaluate.metrics or checkpoint.keep_best names an unknown metric, or one that
/// a validation does not compute.
void check_metrics(const Config& config);
/// Returns the metrics for texts that a run generates at validations: those of evaluate.metrics, and
/// checkpoint.keep_best.
std::vector<std::string> metrics_of_validations(const Config& config, bool pictures);
/// Returns true if a larger score of checkpoint.keep_best is better; false if keep_best names no score, because a
/// smaller validation loss is better.
bool best_is_highest(const Config& config);

}  // namespace blipft
