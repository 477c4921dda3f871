// Byte-pair encoding: merging by rank with a priority queue, and a cache of words.
#include "text/tokenizer_bpe.h"

#include <algorithm>
#include <cstdio>
#include <queue>

#include "blipft/error.h"
#include "text/unicode.h"

namespace blipft {
namespace {

constexpr std::string_view word_start = "\u2581";  // SentencePiece's symbol for the space before a word

/// Returns "<0xE2>" for 0xE2.
std::string byte_token(uint8_t byte) {
  char text[8];
  std::snprintf(text, sizeof(text), "<0x%02X>", byte);
  return text;
}

/// Returns the length of the UTF-8 sequence that starts with this byte.
size_t character_length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

}  // namespace

const std::array<std::string, 256>& byte_symbols() {
  // Printable Latin-1 maps to itself; other bytes map to U+0100 and up, in order.
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

BpeModel::BpeModel(BpeSpec spec, const std::string& file) : spec_(std::move(spec)) {
  for (const auto& [token, id] : spec_.vocab) {
    if (token.empty() || character_length(token[0]) != token.size()) continue;
    size_t position = 0;
    characters_[unicode::next_code_point(token, position)] = id;
  }
  for (size_t byte = 0; spec_.byte_fallback && byte < 256; ++byte) {
    const auto found = spec_.vocab.find(byte_token(static_cast<uint8_t>(byte)));
    fallback_ids_[byte] = found == spec_.vocab.end() ? -1 : found->second;
  }
  if (spec_.byte_level)
    for (size_t byte = 0; byte < 256; ++byte) byte_symbols_[byte] = symbol_of(byte_symbols()[byte]);
  for (const auto& [token, id] : spec_.vocab) {
    if (id < 0) continue;
    if (lengths_.size() <= static_cast<size_t>(id)) lengths_.resize(static_cast<size_t>(id) + 1, 0);
    // A byte's symbol is a character of one or two bytes.
    const auto is_start = [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; };
    std::string_view text = token;
    if (text.ends_with(spec_.end_of_word)) text.remove_suffix(spec_.end_of_word.size());
    lengths_[static_cast<size_t>(id)] = static_cast<uint32_t>(
        spec_.byte_level ? std::count_if(text.begin(), text.end(), is_start) : static_cast<int64_t>(text.size()));
  }
  for (size_t byte = 0; spec_.byte_fallback && byte < 256; ++byte)
    if (fallback_ids_[byte] >= 0) lengths_[static_cast<size_t>(fallback_ids_[byte])] = 1;
  read_merges(file);
  split_at_word_starts_ = no_merge_reaches_back_over_a_word_start();
  spec_.merges.clear();
  spec_.merges.shrink_to_fit();
}

void BpeModel::read_merges(const std::string& file) {
  merge_of_.reserve(spec_.merges.size() * 2);
  int32_t rank = 0;
  for (const auto& [left, right] : spec_.merges) {
    const auto id = [&](const std::string& token) {
      const auto found = spec_.vocab.find(token);
      BLIPFT_USER_CHECK(found != spec_.vocab.end(), file, ": merge ", rank + 1, " (\"", brief(left), " ", brief(right),
                        "\") needs the token \"", brief(token),
                        "\", which is not in the vocabulary; vocabulary and merges must come from the same tokenizer");
      return found->second;
    };
    const int32_t left_id = id(left), right_id = id(right), joined_id = id(left + right);
    merge_of_[pair_key(left_id, right_id)] = Merge{rank++, joined_id};
  }
}

/// If true, the words of a long text, each with its leading "\u2581", can be merged independently.
bool BpeModel::no_merge_reaches_back_over_a_word_start() const {
  if (spec_.byte_level || spec_.ignore_merges || !spec_.end_of_word.empty() || !spec_.vocab.contains(std::string(word_start))) return false;
  for (const auto& [left, right] : spec_.merges)
    if (right.starts_with(word_start) && !left.ends_with(word_start)) return false;
  return true;
}

BpeModel::Symbol BpeModel::symbol_of(std::string_view character, bool ends_word) const {
  Symbol symbol;
  if (ends_word && !spec_.end_of_word.empty()) {
    const auto found = spec_.vocab.find(std::string(character) + spec_.end_of_word);
    if (found != spec_.vocab.end()) symbol.id = found->second;
    return symbol;
  }
  size_t position = 0;
  const auto found = characters_.find(unicode::next_code_point(character, position));
  if (found != characters_.end()) {
    symbol.id = found->second;
  } else if (spec_.byte_fallback) {
    for (char byte : character) {
      const int32_t id = fallback_ids_[static_cast<uint8_t>(byte)];
      if (id < 0) return {};
      symbol.bytes.push_back(id);
    }
  }
  return symbol;
}

std::vector<int32_t> BpeModel::first_symbols(std::string_view word) const {
  std::vector<int32_t> ids;
  ids.reserve(word.size());
  bool unknown = false;  // an unknown token that was not appended yet
  const auto put = [&](const Symbol& symbol) {
    if (symbol.id >= 0) {
      if (unknown) ids.push_back(spec_.unknown_id);
      unknown = false;
      ids.push_back(symbol.id);
    } else if (!symbol.bytes.empty()) {  // a waiting unknown token comes after them, as in the Hugging Face library
      ids.insert(ids.end(), symbol.bytes.begin(), symbol.bytes.end());
    } else if (spec_.unknown_id >= 0) {
      if (unknown && !spec_.fuse_unknown) ids.push_back(spec_.unknown_id);
      unknown = true;
    }
  };
  const size_t ends = spec_.end_of_word.empty() || word.empty() ? 0 : 1;  // last bytes that have tokens of their own
  if (spec_.byte_level) {
    for (char c : word.substr(0, word.size() - ends)) put(byte_symbols_[static_cast<uint8_t>(c)]);
    if (ends) put(symbol_of(byte_symbols()[static_cast<uint8_t>(word.back())], true));
  } else {
    for (size_t at = 0; at < word.size();) {
      const std::string_view character = word.substr(at, character_length(word[at]));
      at += character.size();
      put(symbol_of(character, at == word.size()));
    }
  }
  if (unknown) ids.push_back(spec_.unknown_id);
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
    if (ids[at] != top.left || after >= count || ids[after] != top.right) continue;  // already merged
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
  if (!split_at_word_starts_) return encode_part(word, ids);
  for (size_t begin = 0; begin < word.size();) {
    size_t end = begin;
    while (word.substr(end).starts_with(word_start)) end += word_start.size();
    end = std::min(word.find(word_start, end), word.size());
    encode_part(word.substr(begin, end - begin), ids);
    begin = end;
  }
}

/// Returns the number of bytes of `text` that one unknown token covers. `text` begins with a character without a token.
size_t BpeModel::unknown_length(std::string_view text) const {
  size_t length = 0;
  while (length < text.size()) {
    const std::string_view character = text.substr(length, character_length(text[length]));
    const Symbol symbol = symbol_of(character);
    if (length > 0 && (symbol.id >= 0 || !symbol.bytes.empty() || !spec_.fuse_unknown)) break;
    length += character.size();
  }
  return length;
}

std::vector<size_t> BpeModel::ends_of(std::string_view words, std::span<const int32_t> ids) const {
  std::vector<size_t> ends;
  size_t end = 0;
  for (const int32_t id : ids) {
    end += id == spec_.unknown_id ? unknown_length(words.substr(std::min(end, words.size())))
                                  : lengths_[static_cast<size_t>(id)];
    ends.push_back(end);
  }
  return ends;
}

void BpeModel::encode_part(std::string_view word, std::vector<int32_t>& ids) const {
  if (spec_.ignore_merges) {
    std::string symbols(spec_.byte_level ? "" : word);
    if (spec_.byte_level)
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
