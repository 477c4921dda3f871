// The small files of a saved model: config.json and processor_config.json.
#pragma once

#include <string>
#include <vector>

#include "blipft/tensor.h"

namespace blipft {

struct SavedConfig {
  std::string config;                      ///< the text of config.json
  std::string processor;                   ///< text of processor_config.json; empty: the source's file is used, if any
  std::vector<std::string> notes;          ///< messages about keys that were completed or cannot be
};

/// Returns the files for a model from the folder `source`, saved with tensors in `dtype`. `untied`: the head differs
/// from the embeddings. `vocabulary`: rows of the language model's embeddings. BLIP-2 and InstructBLIP folders of
/// transformers before 4.46 lack image_token_index and num_query_tokens, which transformers 5 needs to generate: this
/// function adds them.
SavedConfig saved_config(const std::string& source, DType dtype, bool untied, int64_t vocabulary);

}  // namespace blipft
