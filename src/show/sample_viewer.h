// SampleViewer: the training samples of a run, as its loader makes them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "blipft/config.h"
#include "blipft/model.h"
#include "blipft/pictures.h"
#include "engine/run_data.h"

namespace blipft {

/// A sample as a step of the first epoch trains on it.
struct ShownSample {
  Dataset::Sample sample;                   ///< text and encoded picture
  TokenizedText text;                       ///< what the loader puts into a batch
  TokenizedText whole;                      ///< the same without the limit data.max_text_tokens
};

class SampleViewer {
 public:
  /// Opens the data. Throws UserError.
  explicit SampleViewer(const Config& config);
  const Config& config() const { return config_; }
  const ModelInputs& inputs() const { return inputs_; }
  const RunData& data() const { return data_; }
  int64_t size() const { return size_; }    ///< number of training samples
  /// Throws UserError if the sample cannot be read.
  ShownSample read(int64_t index) const;
  /// Decodes the picture of a sample that the model reads.
  Image picture(const Dataset::Sample& sample) const;
  /// Returns at most `count` samples: the first ones, or random ones by train.seed.
  std::vector<int64_t> choose(int64_t count, bool random) const;

 private:
  const Config config_;
  ModelInputs inputs_;
  RunData data_;
  int64_t size_ = 0;
};

}  // namespace blipft
