// Checkpoints whose head is not the embeddings, though their config.json ties the two.
#pragma once

#include <string>

#include "blipft/config.h"
#include "blipft/model.h"
#include "io/json.h"
#include "weights/stored_tensors.h"

namespace blipft {

/// Whether config.json says that the head's weight is the embeddings'.
bool says_tied(const nlohmann::ordered_json& config);
/// Whether config.json says so, and the checkpoint has both tensors, with other numbers. transformers then ties nothing,
/// and so does this program. Reads the two where both are there; what cannot be read counts as tied, loading tells of it.
bool has_own_head(const std::string& model_directory);
/// The settings that a run's model is made with: those of the run file, and what the checkpoint says of the head.
ModelSettings with_own_head(ModelSettings settings, const Config& config);
/// Whether a parameter of these units is a head.
bool has_head(const Units& units);

}  // namespace blipft
