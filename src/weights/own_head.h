// Checkpoints whose head is not the embeddings, though their config.json ties the two.
#pragma once

#include <string>

#include "blipft/model.h"
#include "weights/stored_tensors.h"

namespace blipft {

/// True if config.json, or the family by default, ties the head's weight to the embeddings.
bool says_tied(const std::string& model_directory);
/// True if it does, and the checkpoint has both tensors, with other numbers. transformers then ties nothing,
/// and so does this program. Reads the two where both are there; what cannot be read counts as tied, loading tells of it.
bool has_own_head(const std::string& model_directory);
/// True if a parameter of these units is a head of the model's family.
bool has_head(const Units& units, const std::string& model_directory);

}  // namespace blipft
