// Estimates the mean text shape of steps from a few texts, for data that is not surveyed: captions of pictures.
#pragma once

#include <cstdint>
#include <vector>

#include "blipft/datasets.h"
#include "blipft/loading.h"

namespace blipft {

/// Tokens of at most `maximum` texts of the dataset, evenly spread, as a step would have them: cut to data.max_text_tokens,
/// of several captions the first. Reads no picture. Samples whose text cannot be read are left out.
std::vector<int64_t> sampled_text_lengths(const LoadingSettings& loading, const Dataset& dataset, const Tokenizer& tokenizer,
                                          int64_t vocabulary, int64_t maximum = 256);

/// The mean of what steps of such texts take of `shapes` (ascending); the last one where there are none.
TextShape mean_text_shape(const LoadingSettings& loading, const std::vector<int64_t>& lengths,
                          const std::vector<TextShape>& shapes);

}  // namespace blipft
