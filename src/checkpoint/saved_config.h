// The small files of a saved model: config.json, and what transformers needs beside it.
#pragma once

#include <string>
#include <vector>

#include "blipft/tensor.h"

namespace blipft {

struct SavedConfig {
  std::string config;                      ///< the text of config.json
  std::string processor;                   ///< that of processor_config.json; empty: the source's, if it has one, is complete
  std::vector<std::string> notes;          ///< what was completed, or cannot be
};

/// The files of the model in the folder `source`, saved with tensors in `dtype`. `untied`: the head is not the embeddings.
/// BLIP-2 and InstructBLIP folders of transformers before 4.46 lack image_token_index and num_query_tokens, without which
/// transformers 5 cannot generate: they are completed. `vocabulary`: rows of the language model's embeddings.
SavedConfig saved_config(const std::string& source, DType dtype, bool untied, int64_t vocabulary);

}  // namespace blipft
