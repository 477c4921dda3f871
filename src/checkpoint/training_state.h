// What a run goes on from: the parts of trained units that steps change, into and out of a checkpoint's files.
#pragma once

#include <string>
#include <vector>

#include "io/state_files.h"
#include "weights/weights.h"

namespace blipft {

/// The parts that this rank writes: where `replicas` ranks hold the same, each of them writes about as many bytes;
/// `replica` is this rank among them.
std::vector<ParameterStore::Part> parts_to_write(const Units& units, const ParameterStore& store, int64_t replica,
                                                 int64_t replicas);
/// Bytes of the parts of `units` that this rank holds.
int64_t held_state_bytes(const Units& units, const ParameterStore& store);

/// Fills all parts of this rank from the checkpoint in `folder`, on any number of ranks and under any strategy, with
/// `threads` reading threads; checks every checksum of what it reads. Throws UserError naming file and tensor.
void restore_state(const WeightContext& context, const io::StateIndex& index, const std::string& folder,
                   int64_t threads);

}  // namespace blipft
