// Decoding of ids to text: the decoders of tokenizer.json, as streams. The rules are those of the Hugging Face library
// tokenizers (decode_chain of each decoder) and of transformers' clean_up_tokenization.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "blipft/text.h"

namespace blipft {

/// One decoder of a Sequence. Each receives the tokens of the previous one.
struct DecoderStep {
  enum class Kind {
    byte_level,     ///< GPT-2's byte symbols become bytes, and all tokens one text
    replace,        ///< replaces `from` by `to`
    byte_fallback,  ///< runs of "<0xE2>" become characters; a run that is no UTF-8 becomes U+FFFD for each byte
    fuse,           ///< all tokens become one
    strip,          ///< removes at most `count` of the character `from` at a token's start
    metaspace,      ///< replaces `from` by a space, and with `count` > 0 removes it in the first token
    word_piece,     ///< adds a space before each token but the first and those that begin with `from`, which is removed
    clean_spaces,   ///< removes spaces before punctuation and n't in a token, as WordPiece's cleanup does
  } kind = Kind::fuse;
  std::string from, to;
  int64_t count = 0;
};

struct DecoderSpec {
  std::vector<DecoderStep> steps;  ///< empty: tokens are separated by a space
  std::string unsupported;         ///< the decoder that is not supported, for the error message; empty: none
  bool clean_up = false;           ///< transformers' clean_up_tokenization() over the whole text
};

/// The tokens by id.
class TokenTable {
 public:
  /// Adds a token; it replaces an earlier one of the same id.
  void add(int32_t id, const std::string& token, bool special);
  /// Returns null if there is no such token.
  const std::string* find(int32_t id) const {
    const bool known = id >= 0 && static_cast<size_t>(id) < tokens_.size() && tokens_[static_cast<size_t>(id)].known;
    return known ? &tokens_[static_cast<size_t>(id)].text : nullptr;
  }
  bool is_special(int32_t id) const { return find(id) != nullptr && tokens_[static_cast<size_t>(id)].special; }

 private:
  struct Entry {
    std::string text;
    bool known = false, special = false;
  };
  std::vector<Entry> tokens_;
};

/// Makes a stream that decodes tokens by `table` and `spec`, which must outlive the stream.
std::unique_ptr<TextStream> make_text_stream(const TokenTable& table, const DecoderSpec& spec,
                                             const DecodeOptions& options);

}  // namespace blipft
