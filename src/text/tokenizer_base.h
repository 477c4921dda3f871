// FileTokenizer: the common part of all tokenizers that are read from a model directory's files.
#pragma once

#include <algorithm>
#include <utility>

#include "blipft/error.h"
#include "blipft/text.h"
#include "text/tokenizer_decode.h"
#include "text/tokenizer_files.h"
#include "text/unicode.h"

namespace blipft {

class FileTokenizer : public Tokenizer {
 public:
  explicit FileTokenizer(TokenizerSpec spec) : spec_(std::move(spec)) {
    for (const auto& [token, id] : spec_.bpe.vocab) count(id), table_.add(id, token, false);
    for (const AddedToken& token : spec_.added) count(token.id), table_.add(token.id, token.content, token.special);
  }
  std::vector<int32_t> encode_plain(const std::string& text, const EncodeOptions& options = {}) const final {
    TextPositions none;
    return encode_text(unicode::repair_utf8(text), by_files(options), none);
  }
  std::vector<int32_t> encode_with_positions(const std::string& text, TextPositions& positions) const final {
    TextPositions repaired;
    repaired.bytes = repaired_positions(text, positions.bytes);
    std::vector<int32_t> ids = encode_text(unicode::repair_utf8(text), by_files({}), repaired);
    repaired.ids.resize(repaired.bytes.size(), std::max<size_t>(ids.size(), 1) - 1);  // positions at the text's end
    positions.ids = std::move(repaired.ids);
    return ids;
  }
  std::unique_ptr<TextStream> text_stream(const DecodeOptions& options = {}) const final {
    BLIPFT_USER_CHECK(spec_.decoder.unsupported.empty(), spec_.file, ": decoder: ", spec_.decoder.unsupported,
                      "; ids of this tokenizer cannot be made text");
    return make_text_stream(table_, spec_.decoder, options);
  }
  std::vector<int32_t> prefix_ids() const final { return spec_.prefix_ids; }
  std::vector<int32_t> suffix_ids() const final { return spec_.suffix_ids; }
  int64_t vocab_size() const final { return vocab_size_; }
  int32_t pad_id() const final { return spec_.pad_id; }
  std::optional<int32_t> bos_id() const final { return spec_.bos_id; }
  std::optional<int32_t> eos_id() const final { return spec_.eos_id; }
  std::string bos_token() const final { return spec_.bos_token; }
  std::string eos_token() const final { return spec_.eos_token; }

 protected:
  TokenTable& table() { return table_; }
  /// Returns the ids of well-formed UTF-8, and sets positions.ids for the positions before its end.
  virtual std::vector<int32_t> encode_text(const std::string& text, const EncodeOptions& options,
                                           TextPositions& positions) const = 0;
  /// Appends the id indices of the positions before byte `end` of the text; index_of(byte): the index of a byte's id.
  template <class IndexOf>
  static void resolve(TextPositions& positions, size_t end, const IndexOf& index_of) {
    while (positions.ids.size() < positions.bytes.size() && positions.bytes[positions.ids.size()] < end)
      positions.ids.push_back(index_of(positions.bytes[positions.ids.size()]));
  }
  const TokenizerSpec& spec() const { return spec_; }
  BpeSpec take_model() { return std::move(spec_.bpe); }

 private:
  // Returns the positions of `bytes` of a text (ascending) in the repaired text, in time linear in the text. A text can
  // be repaired in parts that begin with the first byte of a character.
  static std::vector<size_t> repaired_positions(std::string_view text, const std::vector<size_t>& bytes) {
    const auto continues = [&](size_t at) { return at < text.size() && (text[at] & 0xc0) == 0x80; };
    std::vector<size_t> positions;
    size_t done = 0, size = 0;             // bytes of the text and of the repaired text
    for (const size_t byte : bytes) {
      size_t first = byte;                 // first byte of the character that contains the byte
      while (first > done && continues(first)) --first;
      size += unicode::repair_utf8(text.substr(done, first - done)).size();
      done = first;
      size_t end = byte + 1;
      while (continues(end)) ++end;
      const size_t width = unicode::repair_utf8(text.substr(first, end - first)).size();
      positions.push_back(size + std::min(byte - first, std::max<size_t>(width, 1) - 1));
    }
    return positions;
  }
  EncodeOptions by_files(EncodeOptions options) const {
    options.split_special_tokens |= spec_.split_special_tokens;
    return options;
  }
  void count(int32_t id) { vocab_size_ = std::max(vocab_size_, int64_t{id} + 1); }
  TokenizerSpec spec_;
  TokenTable table_;
  int64_t vocab_size_ = 0;
};

}  // namespace blipft
