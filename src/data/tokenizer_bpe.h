// Byte-level byte-pair encoding: the GPT-2 split of text into words, and the merging of a word's bytes into tokens.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace blipft {

/// GPT-2's printable stand-in for each byte, as UTF-8: byte 0x20 is "Ġ".
const std::array<std::string, 256>& byte_symbols();
/// The bytes that a token of stand-ins spells. A token with any other character (an added token such as one with a
/// space in it) is returned as it is.
std::string token_bytes(const std::string& token);

/// Splits well-formed UTF-8 by GPT-2's pattern
/// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+  ; the words together are the text.
std::vector<std::string_view> split_words(std::string_view text);

/// What the files say about the model.
struct BpeSpec {
  std::unordered_map<std::string, int32_t> vocab;           // token of stand-ins -> id
  std::vector<std::pair<std::string, std::string>> merges;  // in the order of their rank
  int32_t unknown_id = -1;     // for a byte without a token; -1: such bytes are dropped
  bool fuse_unknown = false;   // one unknown token for a run of them
  bool ignore_merges = false;  // a word that is a token itself is taken whole
};

/// Thread-safe after construction.
class BpeModel {
 public:
  /// Throws UserError, naming `file`, when a merge uses or makes a token that the vocabulary lacks.
  BpeModel(BpeSpec spec, const std::string& file);
  /// Appends the ids of one word (raw bytes).
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;
  const std::unordered_map<std::string, int32_t>& vocab() const { return spec_.vocab; }

 private:
  struct Merge {
    int32_t rank, id;
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
  std::vector<int32_t> first_symbols(std::string_view word) const;
  std::vector<int32_t> merge_word(std::string_view word) const;

  static constexpr size_t shards_ = 8, words_per_shard_ = 4096, longest_cached_word_ = 64;
  BpeSpec spec_;
  std::array<int32_t, 256> byte_ids_{};              // -1: no token
  std::unordered_map<uint64_t, Merge> merge_of_;     // pair_key -> merge
  mutable std::array<CacheShard, shards_> cache_;
};

}  // namespace blipft
