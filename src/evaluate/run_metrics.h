// Which metrics a run file asks for.
#pragma once

#include <string>
#include <vector>

#include "blipft/config.h"

namespace blipft {

/// Those of generated texts that are computed where a run file names none.
std::vector<std::string> fitting_metrics(bool pictures);
/// Those of likelihoods that --evaluate computes beside the metrics of texts.
const std::vector<std::string>& loss_metrics();
/// Throws UserError, with file and line, where evaluate.metrics or checkpoint.keep_best names a metric that there is not, or
/// one that a validation does not compute.
void check_metrics(const Config& config);
/// Those that a run computes of texts that it generates at validations: of evaluate.metrics, and checkpoint.keep_best.
std::vector<std::string> metrics_of_validations(const Config& config, bool pictures);
/// Whether of two scores of checkpoint.keep_best the larger one is better; of the validation loss, where that names none, it is
/// not.
bool best_is_highest(const Config& config);

}  // namespace blipft
