// Text shapes: the possible shapes of a run's steps, and the choice of a shape for a step.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "blipft/batch.h"
#include "blipft/loading.h"

namespace blipft {

/// Returns true if texts are packed: text_padding is `packed`, or it is `automatic` and the loss excludes padding.
bool packs_text(const LoadingSettings& loading);
/// Returns true if a step's samples are distributed over its micro-batches by their length. This needs packed texts and
/// a loss that does not depend on which samples share a micro-batch.
bool balances_micro_batches(const LoadingSettings& loading);

/// Minimum rows of a text of `tokens` tokens: at least one, so that every sample has a row.
inline int64_t rows_of_text(int64_t tokens) { return std::max<int64_t>(tokens, 1); }

/// Returns the size that consecutive micro-batches of `batch_size` samples need, for texts of `lengths` tokens: if
/// packed, the maximum number of text rows of a micro-batch, else the longest text.
int64_t needed_size(bool packed, std::span<const int64_t> lengths, int64_t batch_size);

/// The size that micro-batches need for text, source and pictures; see needed_size() and needed_pictures().
struct TextNeed {
  int64_t text = 0, source = 0;
  PictureShape pictures = {};
  bool operator<(const TextNeed& other) const { return key() < other.key(); }
  int64_t all() const { return text + source + pictures.rows; }
  /// Raises each size to that of `other`.
  void include(const TextNeed& other);

 private:
  std::array<int64_t, 6> key() const {
    return {text, source, pictures.rows, pictures.count, pictures.largest, pictures.windows};
  }
};

/// Returns the shape of pictures without padding.
PictureShape pictures_of(const std::vector<PictureSegment>& pictures, const PatchInputs& patches);
/// Returns what consecutive micro-batches of `batch_size` samples need, given the pictures of each sample: rows, and the
/// pictures and windows that they have more than as many rows of the largest ones, of `largest` rows.
PictureShape needed_pictures(std::span<const PictureShape> samples, int64_t batch_size, const PatchInputs& patches, int64_t largest);
/// Returns the shape that holds all micro-batches whose pictures need at most `need`: the rows that a micro-batch does not use
/// become pictures and windows of padding. There is at least one row. `multiple`: of the rows.
PictureShape padded_pictures(PictureShape need, const PatchInputs& patches, int64_t multiple);

/// Returns the shape of one picture of `max_cells` cells, without padding.
PictureShape largest_picture(const PatchInputs& patches, int64_t max_cells);
/// Returns the shape of a step whose samples have texts of data.max_text_tokens and data.max_pictures pictures (0: one) of
/// the largest size.
TextShape largest_shape(const LoadingSettings& loading, const PatchInputs& patches, int64_t max_cells);

/// Returns the sizes of a shape that depend on the lengths of texts, and the pictures that it has room for.
TextNeed size_of(const TextShape& shape, const PatchInputs& patches = {});
bool holds(const TextShape& shape, const TextNeed& need, const PatchInputs& patches = {});

/// Chooses at most `maximum` of the sizes in `counts` ({size: number of needs}), in ascending order and including the
/// largest. If each need is rounded up to the next chosen size, the sum is minimal.
std::vector<int64_t> min_padded_sizes(const std::map<int64_t, int64_t>& counts, size_t maximum);

/// Returns the first of `shapes` (ascending) that can hold micro-batches of `batch_size` samples with these texts. The
/// last shape holds all possible texts.
TextShape smallest_shape(std::span<const TextShape> shapes, std::span<const BatchSample> samples, int64_t batch_size,
                         const PatchInputs& patches = {});

/// Returns an order of samples with texts of `lengths` tokens that divides them into `groups` consecutive groups with
/// equally many samples and about equally many tokens. Samples are distributed to the groups from the longest on,
/// alternately forwards and backwards. Element i is the index of the sample at position i.
std::vector<size_t> balanced_order(std::span<const int64_t> lengths, int64_t groups);

}  // namespace blipft
