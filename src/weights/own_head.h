// Checkpoints whose head differs from the embeddings although their config.json ties the two.
#pragma once

#include <string>

#include "blipft/model.h"
#include "weights/stored_tensors.h"

namespace blipft {

/// Returns true if config.json, or by default the family, ties the head's weight to the embeddings.
bool says_tied(const std::string& model_directory);
/// Returns true if says_tied(), but the checkpoint has both tensors and their values differ. transformers then does not
/// tie them, and neither does blipft. An unreadable checkpoint counts as tied; loading reports the error later.
bool has_own_head(const std::string& model_directory);
/// Returns true if a parameter of `units` is a head of the model's family.
bool has_head(const Units& units, const std::string& model_directory);

}  // namespace blipft
