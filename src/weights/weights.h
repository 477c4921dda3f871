// First values of the shards that this rank holds: from model directories, or drawn.
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
  Tensor scratch;                          // u8 device memory that is free to use (Arena::scratch)
};

/// The units that are not trained: what a checkpoint of the run does not hold.
WeightContext frozen_of(WeightContext context);

constexpr int64_t kPieceBytes = 8 << 20;   // of weights on their way between files and the device

/// Scratch bytes that loading takes, and initialising.
int64_t loading_scratch_bytes();
int64_t init_scratch_bytes();
/// Fills this rank's shards (and master weights) of the parameters that come from `source`, reading only the ranges it
/// keeps, with `threads` reading threads.
void load_weights(const WeightContext& context, const SafetensorsReader& reader, int64_t threads,
                  Source source = Source::checkpoint);
/// Which parameters init_weights() fills.
enum class Filled { all, fresh };
/// Weights by each parameter's Init: the same numbers for every strategy and world size, whichever of them are filled.
void init_weights(const WeightContext& context, uint64_t seed, Filled filled = Filled::all);

}  // namespace blipft
