// SentencePiece's unigram model in tokenizer.json (T5): the most likely pieces of each word, and its normalizer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace blipft {

struct UnigramSpec {
  std::vector<std::pair<std::string, double>> pieces;  ///< with their log-probabilities; the index is the id
  int32_t unknown_id = 0;
};

/// Finds the most likely pieces of a word, by the rules of the Hugging Face library's Unigram: a character without a
/// piece costs ten more than the least likely piece, and a run of such characters is one unknown token. Thread-safe.
class UnigramModel {
 public:
  explicit UnigramModel(const UnigramSpec& spec);
  /// Appends the ids of one word: well-formed UTF-8.
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  struct Piece {
    int32_t id = 0;
    double score = 0;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, Piece, Hash, std::equal_to<>> pieces_;
  size_t longest_ = 0;
  int32_t unknown_id_ = 0;
  double unknown_score_ = 0;
};

/// The rules of a "Precompiled" normalizer: texts and their replacements, in a double array. SentencePiece uses
/// the longest rule that matches. This class uses the rules as the Hugging Face library does: a rule that a short
/// cluster of characters begins with replaces the whole cluster; otherwise each character is replaced separately.
class PrecompiledCharacters {
 public:
  /// `base64`: precompiled_charsmap. Throws UserError naming `file`.
  PrecompiledCharacters(const std::string& base64, const std::string& file);
  std::string normalized(std::string_view text) const;

 private:
  /// Returns the replacement of the shortest rule that `text` begins with, or null if there is none.
  const char* rule(std::string_view text) const;
  std::vector<uint32_t> units_;
  std::string texts_;                       ///< each ends with a zero
};

}  // namespace blipft
