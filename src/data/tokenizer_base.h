// What all tokenizers have that come from a model directory's files.
#pragma once

#include <algorithm>
#include <utility>

#include "blipft/data.h"
#include "data/tokenizer_files.h"
#include "data/unicode.h"

namespace blipft {

class FileTokenizer : public Tokenizer {
 public:
  explicit FileTokenizer(TokenizerSpec spec) : spec_(std::move(spec)) {
    for (const AddedToken& token : spec_.added) count(token.id);
    for (const auto& [token, id] : spec_.bpe.vocab) count(id);
  }
  std::vector<int32_t> encode_plain(const std::string& text, const EncodeOptions& options = {}) const final {
    std::vector<int32_t> ids;
    encode_text(unicode::repair_utf8(text), options, ids);
    return ids;
  }
  std::vector<int32_t> prefix_ids() const final { return spec_.prefix_ids; }
  std::vector<int32_t> suffix_ids() const final { return spec_.suffix_ids; }
  int64_t vocab_size() const final { return vocab_size_; }
  int32_t pad_id() const final { return spec_.pad_id; }
  std::optional<int32_t> bos_id() const final { return spec_.bos_id; }
  std::optional<int32_t> eos_id() const final { return spec_.eos_id; }

 protected:
  /// Appends the ids of well-formed UTF-8.
  virtual void encode_text(const std::string& text, const EncodeOptions& options, std::vector<int32_t>& ids) const = 0;
  const TokenizerSpec& spec() const { return spec_; }
  BpeSpec take_model() { return std::move(spec_.bpe); }

 private:
  void count(int32_t id) { vocab_size_ = std::max(vocab_size_, int64_t{id} + 1); }
  TokenizerSpec spec_;
  int64_t vocab_size_ = 0;
};

}  // namespace blipft
