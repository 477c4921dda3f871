// Text shapes: which a run's steps may have, and which a step takes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "blipft/batch.h"
#include "blipft/loading.h"

namespace blipft {

/// Whether texts are packed: asked for, or left to us and padding is not learnt.
bool packs_text(const LoadingSettings& loading);
/// Whether a step's samples are spread over its micro-batches by their length: where the loss does not depend on who
/// shares one.
bool balances_micro_batches(const LoadingSettings& loading);

/// Rows that a text of `tokens` tokens takes at least: one, so that a sample is never without rows.
inline int64_t rows_of_text(int64_t tokens) { return std::max<int64_t>(tokens, 1); }

/// What micro-batches of `batch_size` samples with texts of `lengths` tokens, one micro-batch after the other, need:
/// packed the most text rows of one, else the longest text.
int64_t needed_size(bool packed, std::span<const int64_t> lengths, int64_t batch_size);

/// What micro-batches need of both sides of a text shape; see needed_size().
struct TextNeed {
  int64_t text = 0, source = 0;
  auto operator<=>(const TextNeed&) const = default;
  int64_t all() const { return text + source; }
};
/// The side of a shape that grows with the texts.
inline TextNeed size_of(const TextShape& shape) {
  return shape.packed() ? TextNeed{shape.packed_rows, shape.packed_source_rows}
                        : TextNeed{shape.tokens, shape.source_tokens};
}
inline bool holds(const TextShape& shape, const TextNeed& need) {
  const TextNeed size = size_of(shape);
  return need.text <= size.text && (shape.source_tokens == 0 || need.source <= size.source);
}

/// Of sizes that are needed `counts[size]` times, at most `most`, ascending, the last one the largest: when each need
/// is rounded up to the next of them, the sum is least.
std::vector<int64_t> least_padded_sizes(const std::map<int64_t, int64_t>& counts, size_t most);

/// The first of `shapes` (ascending) that holds micro-batches of `batch_size` samples with such texts; the last holds
/// whatever comes.
TextShape smallest_shape(std::span<const TextShape> shapes, std::span<const BatchSample> samples, int64_t batch_size);

/// An order of samples with texts of `lengths` tokens in which `groups` groups of equally many samples, one after the
/// other, have about as many tokens each: longest first, they go to the groups in turn, forth and back. Element i is
/// the sample that comes i-th.
std::vector<size_t> balanced_order(std::span<const int64_t> lengths, int64_t groups);

}  // namespace blipft
