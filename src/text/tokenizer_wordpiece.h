// BERT's tokenizer: a normalizer, words that end at white space and punctuation, and WordPiece (Schuster & Nakajima
// 2012) over them. The rules are those of the Hugging Face library's BertNormalizer, BertPreTokenizer and WordPiece.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace blipft {

/// BertNormalizer.
struct BertText {
  bool cleans = true;          ///< removes control characters, and replaces white space by a space
  bool parts_chinese = true;   ///< adds a space on both sides of each Chinese character
  bool strips_accents = true;  ///< decomposes characters and removes marks
  bool small_letters = true;
};
/// Normalizes well-formed UTF-8 as `form` says.
std::string bert_normalized(std::string_view text, const BertText& form);

/// Splits a text at white space. Each character of punctuation is a separate word.
std::vector<std::string_view> bert_words(std::string_view text);

struct WordPieceSpec {
  std::vector<std::pair<std::string, int32_t>> vocab;
  std::string prefix = "##";   ///< prefix of tokens that continue a word
  int64_t max_characters = 100;  ///< longer words are unknown
  int32_t unknown_id = -1;
};

/// WordPiece: takes the longest token at the start of the word, and repeats this for the rest. A word that cannot be
/// divided so is one unknown token. Thread-safe.
class WordPieceModel {
 public:
  explicit WordPieceModel(WordPieceSpec spec);
  /// Appends the ids of one word: well-formed UTF-8.
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Ids = std::unordered_map<std::string, int32_t, Hash, std::equal_to<>>;
  WordPieceSpec spec_;
  Ids first_, later_;          // ids of tokens that begin a word; of tokens that continue one, without their prefix
  size_t longest_ = 0;         // bytes
};

}  // namespace blipft
