// Byte-pair encoding: a word's first symbols (bytes, or characters with a fallback to bytes) are merged into tokens.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace blipft {

/// GPT-2's printable symbol for each byte, as UTF-8: byte 0x20 is "Ġ".
const std::array<std::string, 256>& byte_symbols();

/// The description of a BPE model in the tokenizer files.
struct BpeSpec {
  std::unordered_map<std::string, int32_t> vocab;           // token -> id
  std::vector<std::pair<std::string, std::string>> merges;  // in the order of their rank
  bool byte_level = false;     // tokens consist of GPT-2's byte symbols; else of characters
  bool byte_fallback = false;  // a character without a token becomes "<0xE2>" and so on, if these are tokens
  int32_t unknown_id = -1;     // for a character without a token; -1: such characters are dropped
  bool fuse_unknown = false;   // one unknown token for a run of such characters
  std::string end_of_word;     // suffix of the last character of a word: CLIP's "</w>"; not with byte_fallback
  bool ignore_merges = false;  // a word that is a token is not split
};

/// Thread-safe after construction.
class BpeModel {
 public:
  /// Throws UserError, naming `file`, if a merge uses or makes a token that is not in the vocabulary.
  BpeModel(BpeSpec spec, const std::string& file);
  /// Appends the ids of one word: well-formed UTF-8, of any length.
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;
  /// Returns the end position in `words` of each of its `ids`.
  std::vector<size_t> ends_of(std::string_view words, std::span<const int32_t> ids) const;

 private:
  struct Merge {
    int32_t rank, id;
  };
  /// The initial tokens of a character: one id, or the ids of its bytes, or none: then it becomes the unknown token, or
  /// is dropped if there is no unknown token.
  struct Symbol {
    int32_t id = -1;
    std::vector<int32_t> bytes;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  struct CacheShard {
    std::mutex mutex;
    std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> words;
  };
  static uint64_t pair_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  void read_merges(const std::string& file);
  size_t unknown_length(std::string_view text) const;
  Symbol symbol_of(std::string_view character, bool ends_word = false) const;
  std::vector<int32_t> first_symbols(std::string_view word) const;
  std::vector<int32_t> merge_word(std::string_view word) const;
  void encode_part(std::string_view word, std::vector<int32_t>& ids) const;
  bool no_merge_reaches_back_over_a_word_start() const;

  static constexpr size_t shards_ = 8, words_per_shard_ = 4096, longest_cached_word_ = 64;
  BpeSpec spec_;
  std::array<Symbol, 256> byte_symbols_;                // used if byte_level
  std::unordered_map<uint32_t, int32_t> characters_;    // code point -> id
  std::array<int32_t, 256> fallback_ids_{};             // if byte_fallback: ids of "<0x00>" and so on; -1: no token
  std::unordered_map<uint64_t, Merge> merge_of_;        // pair_key -> merge
  bool split_at_word_starts_ = false;
  std::vector<uint32_t> lengths_;                       // [ids]: the number of bytes of a word that the id covers
  mutable std::array<CacheShard, shards_> cache_;
};

}  // namespace blipft
