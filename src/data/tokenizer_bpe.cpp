// Byte-level BPE: the GPT-2 pattern written by hand, and merging by rank with a priority queue.
#include "data/tokenizer_bpe.h"

#include <queue>

#include "blipft/error.h"
#include "data/unicode.h"

namespace blipft {
namespace {

enum class CharacterClass { end, letter, number, space, other };

/// The class of the character at text[position]; `next` is where the one behind it starts.
CharacterClass class_at(std::string_view text, size_t position, size_t& next) {
  next = position;
  if (position >= text.size()) return CharacterClass::end;
  const uint32_t code_point = unicode::next_code_point(text, next);
  if (unicode::is_letter(code_point)) return CharacterClass::letter;
  if (unicode::is_space(code_point)) return CharacterClass::space;
  if (unicode::is_number(code_point)) return CharacterClass::number;
  return CharacterClass::other;
}

/// The end of the run of `wanted` characters that starts at `position`.
size_t run_end(std::string_view text, size_t position, CharacterClass wanted) {
  size_t next = position;
  while (class_at(text, position, next) == wanted) position = next;
  return position;
}

/// Length of an English contraction at the start of `text`, or 0.
size_t contraction_length(std::string_view text) {
  for (std::string_view suffix : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
    if (text.starts_with(suffix)) return suffix.size();
  return 0;
}

/// \s+(?!\S)|\s+ : white space leaves its last character to the word behind it, unless it is that character alone.
size_t space_end(std::string_view text, size_t begin) {
  size_t last = begin, position = begin, next = begin;
  while (class_at(text, position, next) == CharacterClass::space) {
    last = position;
    position = next;
  }
  return position == text.size() || last == begin ? position : last;
}

size_t word_end(std::string_view text, size_t begin) {
  if (const size_t length = contraction_length(text.substr(begin))) return begin + length;
  size_t next = begin;
  CharacterClass found = class_at(text, begin, next);
  if (found == CharacterClass::space) {
    size_t behind = next;
    const CharacterClass follower = class_at(text, next, behind);
    if (text[begin] != ' ' || follower == CharacterClass::space || follower == CharacterClass::end)
      return space_end(text, begin);
    found = follower;
    next = behind;
  }
  return run_end(text, next, found);
}

}  // namespace

const std::array<std::string, 256>& byte_symbols() {
  // Printable Latin-1 stands for itself; the rest is moved to U+0100 and up, in order.
  static const std::array<std::string, 256> symbols = [] {
    std::array<std::string, 256> table;
    uint32_t moved = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      unicode::append_utf8(table[byte], printable ? byte : moved++);
    }
    return table;
  }();
  return symbols;
}

std::string token_bytes(const std::string& token) {
  static const std::unordered_map<uint32_t, char> bytes = [] {
    std::unordered_map<uint32_t, char> table;
    for (size_t byte = 0; byte < 256; ++byte) {
      size_t position = 0;
      table[unicode::next_code_point(byte_symbols()[byte], position)] = static_cast<char>(byte);
    }
    return table;
  }();
  std::string out;
  for (size_t position = 0; position < token.size();) {
    const auto found = bytes.find(unicode::next_code_point(token, position));
    if (found == bytes.end()) return token;
    out.push_back(found->second);
  }
  return out;
}

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = word_end(text, begin);
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

BpeModel::BpeModel(BpeSpec spec, const std::string& file) : spec_(std::move(spec)) {
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto found = spec_.vocab.find(byte_symbols()[byte]);
    byte_ids_[byte] = found == spec_.vocab.end() ? -1 : found->second;
  }
  merge_of_.reserve(spec_.merges.size() * 2);
  int32_t rank = 0;
  for (const auto& [left, right] : spec_.merges) {
    const auto id = [&](const std::string& token) {
      const auto found = spec_.vocab.find(token);
      BLIPFT_USER_CHECK(found != spec_.vocab.end(), file, ": merge ", rank + 1, " (\"", left, " ", right,
                        "\") needs the token \"", token,
                        "\", which is not in the vocabulary; vocabulary and merges must come from the same tokenizer");
      return found->second;
    };
    const int32_t left_id = id(left), right_id = id(right), joined_id = id(left + right);
    merge_of_[pair_key(left_id, right_id)] = Merge{rank++, joined_id};
  }
  spec_.merges.clear();
  spec_.merges.shrink_to_fit();
}

std::vector<int32_t> BpeModel::first_symbols(std::string_view word) const {
  std::vector<int32_t> ids;
  ids.reserve(word.size());
  bool in_unknown = false;
  for (char c : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    if (id >= 0) {
      ids.push_back(id);
    } else if (spec_.unknown_id >= 0 && !(in_unknown && spec_.fuse_unknown)) {
      ids.push_back(spec_.unknown_id);
    }
    in_unknown = id < 0;
  }
  return ids;
}

std::vector<int32_t> BpeModel::merge_word(std::string_view word) const {
  std::vector<int32_t> ids = first_symbols(word);
  const int64_t count = static_cast<int64_t>(ids.size());
  std::vector<int64_t> previous(ids.size()), next(ids.size());
  struct Candidate {
    int32_t rank;
    int64_t position;
    int32_t left, right, joined;
    bool operator<(const Candidate& other) const {  // the queue's top: lowest rank, then leftmost
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  std::priority_queue<Candidate> queue;
  const auto offer = [&](int64_t position) {
    if (position < 0 || next[position] >= count) return;
    const int32_t left = ids[position], right = ids[next[position]];
    if (const auto found = merge_of_.find(pair_key(left, right)); found != merge_of_.end())
      queue.push({found->second.rank, position, left, right, found->second.id});
  };
  for (int64_t i = 0; i < count; ++i) previous[i] = i - 1, next[i] = i + 1;
  for (int64_t i = 0; i < count; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    const int64_t at = top.position, after = next[at];
    if (ids[at] != top.left || after >= count || ids[after] != top.right) continue;  // merged away meanwhile
    ids[at] = top.joined;
    ids[after] = -1;
    next[at] = next[after];
    if (next[at] < count) previous[next[at]] = at;
    offer(previous[at]);
    offer(at);
  }
  std::erase(ids, -1);
  return ids;
}

void BpeModel::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (spec_.ignore_merges) {
    std::string symbols;
    for (char c : word) symbols += byte_symbols()[static_cast<uint8_t>(c)];
    if (const auto found = spec_.vocab.find(symbols); found != spec_.vocab.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  if (word.size() > longest_cached_word_) {
    const std::vector<int32_t> merged = merge_word(word);
    ids.insert(ids.end(), merged.begin(), merged.end());
    return;
  }
  CacheShard& shard = cache_[Hash()(word) % shards_];
  {
    const std::lock_guard lock(shard.mutex);
    if (const auto found = shard.words.find(word); found != shard.words.end()) {
      ids.insert(ids.end(), found->second.begin(), found->second.end());
      return;
    }
  }
  std::vector<int32_t> merged = merge_word(word);
  ids.insert(ids.end(), merged.begin(), merged.end());
  const std::lock_guard lock(shard.mutex);
  if (shard.words.size() >= words_per_shard_) shard.words.clear();
  shard.words.emplace(word, std::move(merged));
}

}  // namespace blipft
