// Decoders as streams; see tokenizer_decode.h.
//
// The streams pass on pieces of tokens. Decoders that need whole tokens come before those that join all tokens, so that
// the latter can pass on each piece immediately.
#include "text/tokenizer_decode.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "text/tokenizer_bpe.h"
#include "text/unicode.h"

namespace blipft {
namespace {

struct Piece {
  std::string text;
  bool begins = true;                       ///< true for the first piece of a token
};
using Pieces = std::vector<Piece>;

class Stage {
 public:
  virtual ~Stage() = default;
  virtual void take(Piece piece, Pieces& out) = 0;
  virtual void finish(Pieces& out) { (void)out; }  ///< passes on everything it holds, and resets it
};

std::string replaced(const std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  size_t at = 0;
  for (size_t found; !from.empty() && (found = text.find(from, at)) != std::string::npos; at = found + from.size())
    out.append(text, at, found - at).append(to);
  return out.append(text, at);
}

/// Returns the position of an incomplete character at the end of `bytes`, or the size of `bytes` if there is none.
size_t whole_characters(std::string_view bytes) {
  for (size_t tail = 1; tail <= std::min<size_t>(3, bytes.size()); ++tail) {
    const auto lead = static_cast<uint8_t>(bytes[bytes.size() - tail]);
    if ((lead & 0xC0) == 0x80) continue;
    const size_t length = lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 1;
    size_t read = bytes.size() - tail;      // one ill-formed part at the end: a character that may still be completed
    (void)unicode::next_code_point(bytes, read);
    return length > tail && read == bytes.size() ? bytes.size() - tail : bytes.size();
  }
  return bytes.size();
}

class ByteLevelStage final : public Stage {
 public:
  void take(Piece piece, Pieces& out) override {
    append_bytes(piece.text);
    const size_t whole = whole_characters(bytes_);
    if (whole == 0) return;
    out.push_back({unicode::repair_utf8(std::string_view(bytes_).substr(0, whole)), first_});
    first_ = false;
    bytes_.erase(0, whole);
  }
  void finish(Pieces& out) override {
    if (!bytes_.empty()) out.push_back({unicode::repair_utf8(bytes_), first_});
    bytes_.clear();
    first_ = true;
  }

 private:
  /// A token with a character that is no byte symbol is unchanged text.
  void append_bytes(const std::string& token) {
    static const std::unordered_map<uint32_t, char> byte_of = [] {
      std::unordered_map<uint32_t, char> table;
      for (size_t byte = 0; byte < 256; ++byte) {
        size_t at = 0;
        table.emplace(unicode::next_code_point(byte_symbols()[byte], at), static_cast<char>(byte));
      }
      return table;
    }();
    const size_t before = bytes_.size();
    for (size_t at = 0; at < token.size();) {
      const auto found = byte_of.find(unicode::next_code_point(token, at));
      if (found == byte_of.end()) {
        bytes_.replace(before, std::string::npos, token);
        return;
      }
      bytes_ += found->second;
    }
  }
  std::string bytes_;
  bool first_ = true;
};

class ReplaceStage final : public Stage {
 public:
  explicit ReplaceStage(const DecoderStep& step) : from_(step.from), to_(step.to) {}
  void take(Piece piece, Pieces& out) override { out.push_back({replaced(piece.text, from_, to_), piece.begins}); }

 private:
  std::string from_, to_;
};

class ByteFallbackStage final : public Stage {
 public:
  explicit ByteFallbackStage(bool whole_runs) : whole_runs_(whole_runs) {}
  void take(Piece piece, Pieces& out) override {
    if (const std::optional<char> byte = byte_of(piece.text)) {
      run_ += *byte;
      if (!whole_runs_ && is_utf8(run_)) flush(out);
      return;
    }
    flush(out);
    out.push_back(std::move(piece));
  }
  void finish(Pieces& out) override { flush(out); }

 private:
  static std::optional<char> byte_of(const std::string& token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
    int value = 0;
    for (const char c : {token[3], token[4]}) {
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
      if (digit < 0) return std::nullopt;
      value = value * 16 + digit;
    }
    return static_cast<char>(value);
  }
  static bool is_utf8(const std::string& bytes) { return unicode::repair_utf8(bytes) == bytes; }
  void flush(Pieces& out) {
    if (run_.empty()) return;
    std::string text = run_;
    if (!is_utf8(run_)) {
      text.clear();
      for (size_t i = 0; i < run_.size(); ++i) unicode::append_utf8(text, unicode::replacement_character);
    }
    out.push_back({std::move(text), true});
    run_.clear();
  }
  const bool whole_runs_;
  std::string run_;
};

class FuseStage final : public Stage {
 public:
  void take(Piece piece, Pieces& out) override {
    out.push_back({std::move(piece.text), first_});
    first_ = false;
  }
  void finish(Pieces&) override { first_ = true; }

 private:
  bool first_ = true;
};

class StripStage final : public Stage {
 public:
  explicit StripStage(const DecoderStep& step) : character_(step.from), count_(step.count) {}
  void take(Piece piece, Pieces& out) override {
    if (piece.begins) left_ = count_;
    size_t at = 0;
    for (; left_ > 0 && piece.text.compare(at, character_.size(), character_) == 0; --left_) at += character_.size();
    if (at < piece.text.size()) left_ = 0;
    out.push_back({piece.text.substr(at), piece.begins});
  }

 private:
  std::string character_;
  int64_t count_, left_ = 0;
};

class MetaspaceStage final : public Stage {
 public:
  explicit MetaspaceStage(const DecoderStep& step) : mark_(step.from), strips_(step.count > 0) {}
  void take(Piece piece, Pieces& out) override {
    if (piece.begins) ++token_;
    out.push_back({replaced(piece.text, mark_, strips_ && token_ == 1 ? "" : " "), piece.begins});
  }
  void finish(Pieces&) override { token_ = 0; }

 private:
  std::string mark_;
  bool strips_;
  int64_t token_ = 0;
};

class WordPieceStage final : public Stage {
 public:
  explicit WordPieceStage(const DecoderStep& step) : prefix_(step.from) {}
  void take(Piece piece, Pieces& out) override {
    if (!first_) piece.text = piece.text.starts_with(prefix_) ? piece.text.substr(prefix_.size()) : " " + piece.text;
    first_ = false;
    out.push_back(std::move(piece));
  }
  void finish(Pieces&) override { first_ = true; }

 private:
  std::string prefix_;
  bool first_ = true;
};

using Replacement = std::pair<const char*, const char*>;

/// Applied in this order, each to the whole text. WordPiece has one more than transformers.
constexpr Replacement cleanings[] = {{" .", "."}, {" ?", "?"},     {" !", "!"},          {" ,", ","},    {" ' ", "'"},
                                     {" n't", "n't"}, {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"},
                                     {" 're", "'re"}};
std::string cleaned(std::string text, bool word_piece) {
  for (const auto& [from, to] : cleanings)
    if (word_piece || std::string_view(from) != " do not") text = replaced(text, from, to);
  return text;
}

class CleanTokenStage final : public Stage {
 public:
  void take(Piece piece, Pieces& out) override { out.push_back({cleaned(piece.text, true), piece.begins}); }
};

/// Cleans the whole text. Later pieces may change the cleaned text near the end: each of the ten passes looks at no
/// more than four bytes, so it may change three bytes before those that the previous pass may have changed.
class CleanTextStage final : public Stage {
 public:
  void take(Piece piece, Pieces& out) override {
    text_ += piece.text;
    const std::string text = cleaned(text_, false);
    size_t end = text.size() - std::min(text.size(), waiting_bytes_);
    while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
    give(text.substr(0, end), out);
  }
  void finish(Pieces& out) override {
    give(cleaned(text_, false), out);
    text_.clear();
    given_ = 0;
  }

 private:
  void give(const std::string& text, Pieces& out) {
    if (text.size() <= given_) return;
    out.push_back({text.substr(given_), given_ == 0});
    given_ = text.size();
  }
  static constexpr size_t waiting_bytes_ = 32;
  std::string text_;
  size_t given_ = 0;
};

class JoinStage final : public Stage {
 public:
  void take(Piece piece, Pieces& out) override {
    if (piece.begins && !first_) piece.text.insert(0, " ");
    first_ = false;
    out.push_back(std::move(piece));
  }
  void finish(Pieces&) override { first_ = true; }

 private:
  bool first_ = true;
};

std::unique_ptr<Stage> stage_of(const DecoderStep& step, bool whole_bytes) {
  using Kind = DecoderStep::Kind;
  switch (step.kind) {
    case Kind::byte_level: return std::make_unique<ByteLevelStage>();
    case Kind::replace: return std::make_unique<ReplaceStage>(step);
    case Kind::byte_fallback: return std::make_unique<ByteFallbackStage>(whole_bytes);
    case Kind::fuse: return std::make_unique<FuseStage>();
    case Kind::strip: return std::make_unique<StripStage>(step);
    case Kind::metaspace: return std::make_unique<MetaspaceStage>(step);
    case Kind::word_piece: return std::make_unique<WordPieceStage>(step);
    case Kind::clean_spaces: return std::make_unique<CleanTokenStage>();
  }
  return nullptr;
}

class StagedStream final : public TextStream {
 public:
  StagedStream(const TokenTable& table, const DecoderSpec& spec, const DecodeOptions& options)
      : table_(table), skips_special_(options.skip_special_tokens) {
    for (const DecoderStep& step : spec.steps) stages_.push_back(stage_of(step, options.whole_bytes));
    if (spec.steps.empty()) stages_.push_back(std::make_unique<JoinStage>());
    if (spec.clean_up) stages_.push_back(std::make_unique<CleanTextStage>());
  }

  std::string push(int32_t id) override {
    const std::string* const token = table_.find(id);
    if (token == nullptr || (skips_special_ && table_.is_special(id))) return {};
    return through(0, {{*token, true}});
  }

  std::string finish() override {
    std::string text;
    for (size_t i = 0; i < stages_.size(); ++i) {
      Pieces held;
      stages_[i]->finish(held);
      text += through(i + 1, std::move(held));
    }
    return text;
  }

 private:
  std::string through(size_t stage, Pieces pieces) {
    for (; stage < stages_.size(); ++stage) {
      Pieces next;
      for (Piece& piece : pieces) stages_[stage]->take(std::move(piece), next);
      pieces = std::move(next);
    }
    std::string text;
    for (const Piece& piece : pieces) text += piece.text;
    return text;
  }
  const TokenTable& table_;
  const bool skips_special_;
  std::vector<std::unique_ptr<Stage>> stages_;
};

}  // namespace

void TokenTable::add(int32_t id, const std::string& token, bool special) {
  if (id < 0) return;
  if (tokens_.size() <= static_cast<size_t>(id)) tokens_.resize(static_cast<size_t>(id) + 1);
  tokens_[static_cast<size_t>(id)] = {token, true, special};
}

std::unique_ptr<TextStream> make_text_stream(const TokenTable& table, const DecoderSpec& spec,
                                             const DecodeOptions& options) {
  return std::make_unique<StagedStream>(table, spec, options);
}

}  // namespace blipft
