// The state of training: writes and restores the parts of trained units that steps change.
#pragma once

#include <string>
#include <vector>

#include "io/state_files.h"
#include "weights/weights.h"

namespace blipft {

/// Returns the parts that this rank writes. If `replicas` ranks hold the same parts, each writes about the same number
/// of bytes; `replica` is the index of this rank among them.
std::vector<ParameterStore::Part> parts_to_write(const Units& units, const ParameterStore& store, int64_t replica,
                                                 int64_t replicas);
/// Returns the bytes of the parts of `units` that this rank holds.
int64_t held_state_bytes(const Units& units, const ParameterStore& store);

/// Restores all parts of this rank from the checkpoint in `folder` with `threads` reading threads. The checkpoint may
/// come from another number of ranks or another strategy. Checks the checksums of all segments that it reads. Throws
/// UserError with file and tensor.
void restore_state(const WeightContext& context, const io::StateIndex& index, const std::string& folder,
                   int64_t threads);

/// Loads the weights that the checkpoint in `folder` contains into a model without trained parameters. Throws UserError
/// with file and tensor.
void load_trained_weights(const WeightContext& context, const std::string& folder);

}  // namespace blipft
