// What a model directory's tokenizer files say, read into one description.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer_bpe.h"

namespace blipft {

/// A token that is found in the text before it is split into words.
struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool special = false;      ///< left out by decode(..., skip_special_tokens = true)
  bool lstrip = false;       ///< swallows the white space before it
  bool rstrip = false;       ///< swallows the white space behind it
  bool single_word = false;  ///< only where no word character touches it
  bool normalized = true;    ///< looked for in the normalised text, after the others were found in the text as given
};

struct TokenizerSpec {
  std::string file;  ///< tokenizer.json or vocab.json: for messages
  BpeSpec bpe;
  bool normalize_nfc = false;
  bool add_prefix_space = false;
  bool split_words = true;                   ///< the GPT-2 pattern; false: a piece of text is one word
  std::vector<AddedToken> added;             ///< each content once
  std::vector<int32_t> prefix_ids, suffix_ids;  ///< put around every text
  int32_t pad_id = -1;
};

/// Reads tokenizer.json, else vocab.json + merges.txt, and beside them tokenizer_config.json, and (where that has no
/// added_tokens_decoder) special_tokens_map.json and added_tokens.json, with the meaning that Hugging Face transformers
/// 5 gives them. A directory with OPT's vocab.json and merges.txt and none of the others is read as OPT's tokenizer.
/// Throws UserError naming the file, what was found and what is supported.
TokenizerSpec read_tokenizer_files(const std::string& directory);

}  // namespace blipft
