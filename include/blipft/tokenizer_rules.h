// TokenizerRules: how a model family changes the reading of a tokenizer.json.
#pragma once

#include <string>

namespace blipft {

/// Which class AutoTokenizer of transformers uses for a folder with a tokenizer.json. A class replaces parts of the file.
struct TokenizerRules {
  std::string tokenizer_class;             ///< "Qwen2Tokenizer"; empty: the file is used as it is
  bool overrides_files = false;            ///< false: applies only if the folder's files name no tokenizer_class
};

}  // namespace blipft
