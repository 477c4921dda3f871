// Facts of a model family about texts: which class reads its tokenizer.json, and how pictures stand in a text.
#pragma once

#include <string>

namespace blipft {

/// Which class AutoTokenizer of transformers uses for a folder with a tokenizer.json. A class replaces parts of the file.
struct TokenizerRules {
  std::string tokenizer_class;             ///< "Qwen2Tokenizer"; empty: the file is used as it is
  bool overrides_files = false;            ///< false: applies only if the folder's files name no tokenizer_class
};

/// The text of a picture. A chat template writes the placeholder for each picture; the processor of the family replaces it
/// by `before`, one `cell` for each row of the picture, and `after`. StreamInputs::picture_id is the id of a cell.
struct PictureTokens {
  std::string placeholder;                 ///< "<|image_pad|>"; empty: the model reads no pictures in texts
  std::string before, cell, after;
};

}  // namespace blipft
