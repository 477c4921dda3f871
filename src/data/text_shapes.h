// Text shapes: which a run's steps may have, and which a step takes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "blipft/batch.h"

namespace blipft {

/// Rows that a text of `tokens` tokens takes at least: one, so that a sample is never without rows.
inline int64_t rows_of_text(int64_t tokens) { return std::max<int64_t>(tokens, 1); }

/// The first of `shapes` (ascending) that holds micro-batches of `batch_size` samples with such texts; the last holds
/// whatever comes.
TextShape smallest_shape(std::span<const TextShape> shapes, std::span<const BatchSample> samples, int64_t batch_size);

/// An order of samples with texts of `lengths` tokens in which `groups` groups of equally many samples, one after the
/// other, have about as many tokens each: longest first, they go to the groups in turn, forth and back. Element i is
/// the sample that comes i-th.
std::vector<size_t> balanced_order(std::span<const int64_t> lengths, int64_t groups);

}  // namespace blipft
