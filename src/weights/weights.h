// Initial values of the shards that this rank holds: loaded from model folders, or random.
#pragma once

#include <string>

#include "blipft/checkpoint.h"
#include "blipft/comm.h"
#include "blipft/strategy.h"
#include "weights/stored_tensors.h"

namespace blipft {

struct WeightContext {
  Units units;
  ParameterStore* store = nullptr;
  Strategy* strategy = nullptr;
  Device* device = nullptr;
  Ops* ops = nullptr;
  Tensor scratch;                          // u8 device memory for temporary data (Arena::scratch)
};

/// Returns the context with only the frozen units, which checkpoints of a run do not contain.
WeightContext frozen_of(WeightContext context);

constexpr int64_t kPieceBytes = 8 << 20;   // transfer size between files and the device

/// Scratch bytes that load_weights() and init_weights() need.
int64_t loading_scratch_bytes();
int64_t init_scratch_bytes();
/// Loads this rank's shards (and master weights) of the parameters whose source is `source`, with `threads` reading
/// threads. Reads only the ranges of this rank, and whole matrices only for scales.
void load_weights(const WeightContext& context, const SafetensorsReader& reader, int64_t threads,
                  Source source = Source::checkpoint);
/// The parameters that init_weights() fills.
enum class Filled { all, fresh };
/// Fills parameters by their Init. The values do not depend on the strategy, the world size or `filled`.
void init_weights(const WeightContext& context, uint64_t seed, Filled filled = Filled::all);

}  // namespace blipft
