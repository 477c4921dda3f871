// The byte-level BPE tokenizer: added tokens are cut out of the text, the rest is split into words and encoded.
#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "blipft/data.h"
#include "blipft/error.h"
#include "data/tokenizer_bpe.h"
#include "data/tokenizer_files.h"
#include "data/unicode.h"

namespace blipft {
namespace {

/// A part of the text: an added token (id >= 0) or plain text.
struct Piece {
  int32_t id = -1;
  std::string_view text;
};

/// Start of the white space that `text` ends with.
size_t trailing_space(std::string_view text) {
  size_t start = 0;
  for (size_t position = 0; position < text.size();)
    if (!unicode::is_space(unicode::next_code_point(text, position))) start = position;
  return start;
}

/// Length of the white space that `text` starts with.
size_t leading_space(std::string_view text) {
  for (size_t position = 0; position < text.size();) {
    const size_t begin = position;
    if (!unicode::is_space(unicode::next_code_point(text, position))) return begin;
  }
  return text.size();
}

bool starts_with_word(std::string_view text) {
  size_t position = 0;
  return !text.empty() && unicode::is_word_character(unicode::next_code_point(text, position));
}

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  size_t position = text.size() - 1;
  while (position > 0 && (static_cast<uint8_t>(text[position]) & 0xC0) == 0x80) --position;
  return unicode::is_word_character(unicode::next_code_point(text, position));
}

/// Finds added tokens: leftmost first, and the longest of those that start at one place.
class AddedTokenFinder {
 public:
  void add(const AddedToken& token, const std::string& content) {
    if (content.empty()) return;
    auto& list = by_first_byte_[static_cast<uint8_t>(content[0])];
    list.push_back({content, token});
    std::stable_sort(list.begin(), list.end(),
                     [](const Entry& a, const Entry& b) { return a.content.size() > b.content.size(); });
  }

  /// Appends the pieces of `text` in order; text between added tokens is never empty.
  void split(std::string_view text, std::vector<Piece>& pieces) const {
    size_t done = 0;
    for (size_t at = 0; at < text.size();) {
      const Entry* entry = match(text.substr(at));
      if (entry == nullptr) {
        ++at;
        continue;
      }
      const size_t found = at;
      at += entry->content.size();
      const AddedToken& token = entry->token;
      if (token.single_word && (ends_with_word(text.substr(0, found)) || starts_with_word(text.substr(at)))) continue;
      // White space that an earlier token's rstrip took is not there any more.
      size_t begin = std::max(found, done), end = at;
      if (token.lstrip) begin = std::max(trailing_space(text.substr(0, found)), done);
      if (token.rstrip) end += leading_space(text.substr(at));
      if (begin > done) pieces.push_back({-1, text.substr(done, begin - done)});
      pieces.push_back({token.id, text.substr(begin, end - begin)});
      done = end;
    }
    if (done < text.size()) pieces.push_back({-1, text.substr(done)});
  }

 private:
  struct Entry {
    std::string content;
    AddedToken token;
  };
  const Entry* match(std::string_view text) const {
    for (const Entry& entry : by_first_byte_[static_cast<uint8_t>(text[0])])
      if (text.starts_with(entry.content)) return &entry;
    return nullptr;
  }
  std::array<std::vector<Entry>, 256> by_first_byte_;
};

class ByteLevelTokenizer final : public Tokenizer {
 public:
  explicit ByteLevelTokenizer(TokenizerSpec spec) : model_(std::move(spec.bpe), spec.file), spec_(std::move(spec)) {
    int32_t largest = -1;
    for (const auto& [token, id] : model_.vocab()) {
      largest = std::max(largest, id);
      bytes_of_[id] = token_bytes(token);
    }
    for (const AddedToken& token : spec_.added) {
      largest = std::max(largest, token.id);
      bytes_of_[token.id] = token_bytes(token.content);
      if (token.special) special_ids_.insert(token.id);
      if (token.normalized) {
        normalized_tokens_.add(token, normalized(token.content));
      } else {
        raw_tokens_.add(token, token.content);
      }
    }
    vocab_size_ = int64_t{largest} + 1;
  }

  std::vector<int32_t> encode_plain(const std::string& text) const override {
    std::vector<int32_t> ids;
    const std::string clean = unicode::repair_utf8(text);
    std::vector<Piece> pieces;
    raw_tokens_.split(clean, pieces);
    for (const Piece& piece : pieces) {
      if (piece.id >= 0) {
        ids.push_back(piece.id);
      } else {
        encode_piece(normalized(piece.text), ids);
      }
    }
    return ids;
  }
  std::vector<int32_t> prefix_ids() const override { return spec_.prefix_ids; }
  std::vector<int32_t> suffix_ids() const override { return spec_.suffix_ids; }

  std::string decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const override {
    std::string bytes;
    for (int32_t id : ids) {
      if (skip_special_tokens && special_ids_.contains(id)) continue;
      if (const auto found = bytes_of_.find(id); found != bytes_of_.end()) bytes += found->second;
    }
    return unicode::repair_utf8(bytes);
  }

  int64_t vocab_size() const override { return vocab_size_; }
  int32_t pad_id() const override { return spec_.pad_id; }

 private:
  std::string normalized(std::string_view text) const {
    return spec_.normalize_nfc ? unicode::nfc(text) : std::string(text);
  }

  /// Plain text after normalisation.
  void encode_piece(const std::string& text, std::vector<int32_t>& ids) const {
    std::vector<Piece> pieces;
    normalized_tokens_.split(text, pieces);
    for (const Piece& piece : pieces) {
      if (piece.id >= 0) {
        ids.push_back(piece.id);
      } else if (spec_.add_prefix_space && !piece.text.starts_with(' ')) {
        encode_words(" " + std::string(piece.text), ids);
      } else {
        encode_words(piece.text, ids);
      }
    }
  }

  void encode_words(std::string_view text, std::vector<int32_t>& ids) const {
    if (!spec_.split_words) return model_.encode_word(text, ids);
    for (std::string_view word : split_words(text)) model_.encode_word(word, ids);
  }

  BpeModel model_;
  TokenizerSpec spec_;
  AddedTokenFinder raw_tokens_, normalized_tokens_;
  std::unordered_map<int32_t, std::string> bytes_of_;
  std::unordered_set<int32_t> special_ids_;
  int64_t vocab_size_ = 0;
};

}  // namespace

std::vector<int32_t> Tokenizer::encode(const std::string& text) const {
  std::vector<int32_t> ids = prefix_ids();
  for (const std::vector<int32_t>& more : {encode_plain(text), suffix_ids()})
    ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& model_directory) {
  return std::make_unique<ByteLevelTokenizer>(read_tokenizer_files(model_directory));
}

}  // namespace blipft
