// The tokenizer of byte-pair encoding: added tokens are cut out of the text, the rest is normalised, split into words
// and merged.
#include <string_view>

#include "blipft/data.h"
#include "data/tokenizer_base.h"
#include "data/tokenizer_bpe.h"
#include "data/tokenizer_sentencepiece.h"
#include "data/unicode.h"

namespace blipft {
namespace {

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  for (size_t at = 0; at < text.size();) {
    const size_t found = std::min(text.find(from, at), text.size());
    out += text.substr(at, found - at);
    if (found < text.size()) out += to;
    at = found + from.size();
  }
  return out;
}

class BpeTokenizer final : public FileTokenizer {
 public:
  explicit BpeTokenizer(TokenizerSpec files) : FileTokenizer(std::move(files)), model_(take_model(), spec().file) {
    for (const AddedToken& token : spec().added) {
      if (token.normalized) {
        normalized_tokens_.add(token, normalized(token.content));
      } else {
        raw_tokens_.add(token, token.content);
      }
    }
  }

 private:
  void encode_text(const std::string& text, const EncodeOptions& options, std::vector<int32_t>& ids) const override {
    std::vector<TextPiece> pieces, parts;
    raw_tokens_.split(text, options.split_special_tokens, pieces);
    for (const TextPiece& piece : pieces) {
      if (piece.id >= 0) {
        ids.push_back(piece.id);
        continue;
      }
      const std::string clean = normalized(piece.text);
      parts.clear();
      normalized_tokens_.split(clean, options.split_special_tokens, parts);
      for (const TextPiece& part : parts) {
        const bool first = piece.text.data() == text.data() && part.text.data() == clean.data();
        part.id >= 0 ? ids.push_back(part.id) : encode_part(part.text, first, ids);
      }
    }
  }

  std::string normalized(std::string_view text) const {
    std::string out(text);
    for (const NormalizerStep& step : spec().normalizer) {
      if (step.kind == NormalizerStep::Kind::nfc) out = unicode::nfc(out);
      if (step.kind == NormalizerStep::Kind::prepend && !out.empty()) out.insert(0, step.to);
      if (step.kind == NormalizerStep::Kind::replace) out = replaced(out, step.from, step.to);
    }
    return out;
  }

  /// Normalised text between added tokens; `first`: nothing stands before it.
  void encode_part(std::string_view text, bool first, std::vector<int32_t>& ids) const {
    if (spec().metaspace) {
      encode_metaspace(*spec().metaspace, text, first, ids);
    } else if (spec().add_prefix_space && !text.starts_with(' ')) {
      encode_words(" " + std::string(text), ids);
    } else {
      encode_words(text, ids);
    }
  }

  void encode_words(std::string_view text, std::vector<int32_t>& ids) const {
    for (std::string_view word : split_words(text, spec().split)) model_.encode_word(word, ids);
  }

  void encode_metaspace(const Metaspace& settings, std::string_view text, bool first,
                        std::vector<int32_t>& ids) const {
    const std::string& mark = settings.replacement;
    std::string marked = replaced(text, " ", mark);
    const bool prepend = settings.prepend == Metaspace::Prepend::always ||
                         (settings.prepend == Metaspace::Prepend::first && first);
    if (prepend && !marked.starts_with(mark)) marked.insert(0, mark);
    if (!settings.split) return model_.encode_word(marked, ids);
    const std::string_view whole = marked;
    for (size_t begin = 0; begin < whole.size();) {
      const size_t from = whole.substr(begin).starts_with(mark) ? begin + mark.size() : begin;
      const size_t end = std::min(whole.find(mark, from), whole.size());
      model_.encode_word(whole.substr(begin, end - begin), ids);
      begin = end;
    }
  }

  BpeModel model_;
  AddedTokenFinder raw_tokens_, normalized_tokens_;
};

}  // namespace

std::vector<int32_t> Tokenizer::encode(const std::string& text, const EncodeOptions& options) const {
  if (!options.add_special_tokens) return encode_plain(text, options);
  std::vector<int32_t> ids = prefix_ids();
  for (const std::vector<int32_t>& more : {encode_plain(text, options), suffix_ids()})
    ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& model_directory) {
  TokenizerSpec spec = read_tokenizer_files(model_directory);
  if (spec.sentencepiece) return make_sentencepiece_tokenizer(std::move(spec));
  return std::make_unique<BpeTokenizer>(std::move(spec));
}

}  // namespace blipft
