// Settings of a Sampler in few words.
#pragma once

#include "blipft/loading.h"

namespace blipft::testing {

inline Sampler::Settings settings(int64_t size, int64_t batch, int64_t micro, int64_t world = 1, int64_t rank = 0) {
  Sampler::Settings s;
  s.dataset_size = size, s.batch_size = batch, s.micro_batches = micro, s.world = world, s.rank = rank, s.seed = 11;
  return s;
}

}  // namespace blipft::testing
