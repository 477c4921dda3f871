// Random orders of samples, from Philox words: the same for every rank and on every machine.
#pragma once

#include <cstdint>
#include <vector>

namespace blipft {

/// Tells the draws of one purpose from those of another, and from dropout's, which use the same key.
enum class RandomOrder : uint32_t { epoch = 0x6f726472u, split = 0x73706c74u };

/// Fills `order` with a permutation of the numbers below its size.
void shuffle(std::vector<int64_t>& order, uint64_t seed, RandomOrder purpose, int64_t epoch = 0);

}  // namespace blipft
