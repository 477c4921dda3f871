// A tokenizer with one id per byte.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "blipft/text.h"

namespace blipft::testing {

/// Encodes a text as id 2, the value of each byte, and `suffix`.
class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(std::vector<int32_t> suffix = {}) : suffix_(std::move(suffix)) {}
  std::vector<int32_t> encode_plain(const std::string& text, const EncodeOptions& = {}) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::vector<int32_t> prefix_ids() const override { return {2}; }
  std::vector<int32_t> suffix_ids() const override { return suffix_; }
  int64_t vocab_size() const override { return 256; }
  int32_t pad_id() const override { return 1; }
  std::unique_ptr<TextStream> text_stream(const DecodeOptions& = {}) const override {
    class Bytes final : public TextStream {
      std::string push(int32_t id) override { return std::string(1, static_cast<char>(id)); }
      std::string finish() override { return {}; }
    };
    return std::make_unique<Bytes>();
  }

 private:
  std::vector<int32_t> suffix_;
};

}  // namespace blipft::testing
