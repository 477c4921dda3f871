// Random permutations of samples from Philox numbers. They are identical on every rank and machine.
#pragma once

#include <cstdint>
#include <vector>

namespace blipft {

/// Separates the random numbers of one purpose from those of others, and from dropout's numbers, which use the same
/// key.
enum class RandomOrder : uint32_t { epoch = 0x6f726472u, split = 0x73706c74u };

/// Fills `order` with a random permutation of 0, 1, ..., order.size() - 1.
void shuffle(std::vector<int64_t>& order, uint64_t seed, RandomOrder purpose, int64_t epoch = 0);

}  // namespace blipft
