// The tokenizer for byte-pair encoding, Unigram and WordPiece: it cuts added tokens out of the text, normalizes the
// rest, splits it into words, and encodes these.
#include <algorithm>
#include <optional>
#include <string_view>

#include "blipft/error.h"
#include "blipft/text.h"
#include "text/tokenizer_base.h"
#include "text/tokenizer_bpe.h"
#include "text/tokenizer_sentencepiece.h"
#include "text/tokenizer_unigram.h"
#include "text/tokenizer_wordpiece.h"
#include "text/unicode.h"

namespace blipft {
namespace {

/// The largest growth of a text by normalizing; a file whose steps double a text repeatedly is refused.
constexpr size_t max_growth = 64, max_growth_of_short = size_t{1} << 16;

std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     size_t maximum = std::string::npos) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  for (size_t at = 0; at < text.size();) {
    const size_t found = std::min(text.find(from, at), text.size());
    out += text.substr(at, found - at);
    if (found < text.size()) out += to;
    if (out.size() > maximum) break;
    at = found + from.size();
  }
  return out;
}

std::string replaced(std::string_view text, const Pattern& pattern, std::string_view to, size_t maximum) {
  std::string out;
  size_t done = 0;
  for (const auto& [begin, end] : pattern.matches(text)) {
    out += text.substr(done, begin - done);
    out += to;
    if (out.size() > maximum) break;
    done = end;
  }
  return out += text.substr(done);
}

class BpeTokenizer final : public FileTokenizer {
 public:
  explicit BpeTokenizer(TokenizerSpec files) : FileTokenizer(std::move(files)), model_(take_model(), spec().file) {
    if (spec().unigram) unigram_.emplace(*spec().unigram);
    if (spec().word_piece) word_piece_.emplace(*spec().word_piece);
    for (const NormalizerStep& step : spec().normalizer)
      if (step.kind == NormalizerStep::Kind::precompiled) characters_.emplace_back(step.from, spec().file);
    for (const AddedToken& token : spec().added) {
      if (token.normalized) {
        const std::string content = normalized(token.content);
        normalized_tokens_.add(token, content);
        // The Hugging Face library decodes to the text that it searched for, and identifies special tokens by their
        // text.
        if (content != token.content) table().add(token.id, content, false);
      } else {
        raw_tokens_.add(token, token.content);
      }
    }
  }

 private:
  /// Normalized text between added tokens, or an added token.
  struct Part {
    TextPiece piece;
    std::string text;    ///< the text that is split into words
    size_t begin = 0;    ///< position in the normalized text
    bool first = false;  ///< true if it begins the text
    size_t first_id = 0;
    std::vector<size_t> ends = {};  ///< ends of its ids in `text`; filled at the first lookup of a position
    size_t counted = 0, spaces = 0;  ///< the number of spaces in the first `counted` bytes of the piece
  };
  /// The size of the first `raw` bytes of a piece after normalizing. Positions ascend, so each lookup continues the
  /// previous one.
  struct NormalizedPrefix {
    size_t raw = 0, size = 0;
  };

  std::vector<int32_t> encode_text(const std::string& text, const EncodeOptions& options,
                                   TextPositions& positions) const override {
    BLIPFT_USER_CHECK((!unigram_ && !word_piece_) || positions.bytes.empty(), spec().file, ": model.type is ",
                      unigram_ ? "Unigram" : "WordPiece", ", which is for prompts and answers: conversations are not ",
                      "supported with it");
    const auto& infilling = spec().infilling;
    const size_t mark = infilling ? text.find(infilling->mark) : std::string::npos;
    if (mark == std::string::npos) return encode_all(text, options, positions);
    const size_t behind = mark + infilling->mark.size();
    BLIPFT_USER_CHECK(text.find(infilling->mark, behind) == std::string::npos, spec().file, ": a text has ",
                      infilling->mark, " more than once, expected one place to fill; correct the text");
    BLIPFT_USER_CHECK(positions.bytes.empty(), spec().file, ": a conversation has ", infilling->mark,
                      ", which is for texts alone: take it out");
    if (behind == text.size()) return encode_all(text.substr(0, mark), options, positions);
    std::vector<int32_t> ids = {infilling->prefix_id};
    const auto add = [&](const std::string& part, int32_t id_behind) {
      const std::vector<int32_t> more = encode_all(part, options, positions);
      ids.insert(ids.end(), more.begin(), more.end());
      ids.push_back(id_behind);
    };
    add(" " + text.substr(0, mark), infilling->suffix_id);
    add(text.substr(behind), infilling->middle_id);
    return ids;
  }

  std::vector<int32_t> encode_all(const std::string& text, const EncodeOptions& options, TextPositions& positions) const {
    std::vector<int32_t> ids;
    std::vector<TextPiece> pieces;
    raw_tokens_.split(text, options.split_special_tokens, pieces);
    for (const TextPiece& piece : pieces) {
      const size_t begin = static_cast<size_t>(piece.text.data() - text.data()), end = begin + piece.text.size();
      const size_t first_id = ids.size();
      if (piece.id >= 0) {
        ids.push_back(piece.id);
        resolve(positions, end, [&](size_t) { return first_id; });
        continue;
      }
      const std::string clean = normalized(piece.text);
      std::vector<Part> parts = encode_clean(clean, begin == 0, options, ids);
      const bool same = clean == piece.text;
      NormalizedPrefix prefix;
      resolve(positions, end, [&](size_t byte) {
        const size_t position = byte - begin;
        return index_at(parts, ids, clean, same ? position : normalized_size(piece.text, position, prefix));
      });
    }
    return ids;
  }

  /// Appends the ids of normalized text; `first`: it begins the text.
  std::vector<Part> encode_clean(const std::string& clean, bool first, const EncodeOptions& options,
                                 std::vector<int32_t>& ids) const {
    std::vector<TextPiece> pieces;
    normalized_tokens_.split(clean, options.split_special_tokens, pieces);
    std::vector<Part> parts;
    for (const TextPiece& piece : pieces) {
      Part part{piece, {}, static_cast<size_t>(piece.text.data() - clean.data()), false, ids.size()};
      part.first = first && part.begin == 0;
      if (piece.id >= 0) {
        ids.push_back(piece.id);
      } else {
        part.text = with_prefix(piece.text, part.first);
        encode_words(part.text, ids);
      }
      parts.push_back(std::move(part));
    }
    return parts;
  }

  /// Returns the index of the id that covers byte `position` of the normalized text.
  size_t index_at(std::vector<Part>& parts, const std::vector<int32_t>& ids, std::string_view clean,
                  size_t position) const {
    if (parts.empty()) return ids.size();
    const auto behind = std::upper_bound(parts.begin() + 1, parts.end(), position,
                                         [](size_t byte, const Part& one) { return byte < one.begin; });
    const auto at = static_cast<size_t>(behind - parts.begin()) - 1;
    Part& part = parts[at];
    if (part.piece.id >= 0) return part.first_id;
    const size_t end = at + 1 < parts.size() ? parts[at + 1].first_id : ids.size();
    const size_t own = end - part.first_id;
    const size_t position_there = size_with_prefix(clean.substr(part.begin), position - part.begin, part);
    if (part.ends.empty()) part.ends = ends_of(part.text);
    const auto found = std::upper_bound(part.ends.begin(), part.ends.end(), position_there);
    const auto index = static_cast<size_t>(found - part.ends.begin());
    return part.first_id + std::min(index, std::max<size_t>(own, 1) - 1);
  }

  std::string normalized(std::string_view text) const {
    std::string out(text);
    const size_t maximum = text.size() * max_growth + max_growth_of_short;
    size_t table = 0;
    for (const NormalizerStep& step : spec().normalizer) {
      if (step.kind == NormalizerStep::Kind::precompiled) out = characters_[table++].normalized(out);
      if (step.kind == NormalizerStep::Kind::bert) out = bert_normalized(out, step.bert);
      if (step.kind == NormalizerStep::Kind::form) out = unicode::normalized(out, step.form);
      if (step.kind == NormalizerStep::Kind::small_letters) out = bert_normalized(out, {false, false, false, true});
      if (step.kind == NormalizerStep::Kind::prepend && !out.empty()) out.insert(0, step.to);
      if (step.kind == NormalizerStep::Kind::replace)
        out = step.pattern ? replaced(out, *step.pattern, step.to, maximum) : replaced(out, step.from, step.to, maximum);
      BLIPFT_USER_CHECK(out.size() <= maximum, spec().file, ": its normalizer makes a text of ", text.size(),
                        " bytes longer than ", maximum, "; expected one that keeps texts about as long");
    }
    return out;
  }

  /// Returns the size of the normalized text before a position. Normalizing restarts at an ASCII character, which never
  /// combines with the character before it, so that many positions take linear time.
  size_t normalized_size(std::string_view text, size_t position, NormalizedPrefix& known) const {
    const auto& steps = spec().normalizer;
    const auto joins = [](const NormalizerStep& step) {
      return step.kind == NormalizerStep::Kind::replace && (step.pattern || step.from.size() > 1);
    };
    if (position < known.raw || std::any_of(steps.begin(), steps.end(), joins)) return normalized(text.substr(0, position)).size();
    const auto size_of = [&](size_t from, size_t to) {
      const size_t size = normalized(text.substr(from, to - from)).size();
      return size - (from > 0 && to > from ? normalized("a").size() - 1 : 0);  // without the prefix of a text
    };
    size_t cut = position;
    while (cut > known.raw && (cut == text.size() || static_cast<unsigned char>(text[cut]) >= 0x80)) --cut;
    known = {cut, known.size + size_of(known.raw, cut)};
    return known.size + size_of(cut, position);
  }

  /// Returns normalized text between added tokens with the prefix for splitting; `first`: it begins the text.
  std::string with_prefix(std::string_view text, bool first) const {
    const auto& metaspace = spec().metaspace;
    if (unigram_) return std::string(text);  // each word has its own prefix
    if (!metaspace) return (spec().add_prefix_space && !text.starts_with(' ') ? " " : "") + std::string(text);
    std::string marked = replaced(text, " ", metaspace->replacement);
    const bool prepend = metaspace->prepend == Metaspace::Prepend::always ||
                         (metaspace->prepend == Metaspace::Prepend::first && first);
    if (prepend && !marked.starts_with(metaspace->replacement)) marked.insert(0, metaspace->replacement);
    return marked;
  }

  /// Returns the size of the first `bytes` bytes of a part's normalized text including the prefix, which belongs to the
  /// first character.
  size_t size_with_prefix(std::string_view clean, size_t bytes, Part& part) const {
    if (bytes == 0 || unigram_) return bytes;
    const auto& metaspace = spec().metaspace;
    if (!metaspace) return bytes + (spec().add_prefix_space && !clean.starts_with(' ') ? 1 : 0);
    if (bytes < part.counted) part.counted = part.spaces = 0;
    const std::string_view more = clean.substr(part.counted, bytes - part.counted);
    part.spaces += static_cast<size_t>(std::count(more.begin(), more.end(), ' '));
    part.counted = bytes;
    const std::string& mark = metaspace->replacement;
    return bytes + part.spaces * (mark.size() - 1) + with_prefix(clean.substr(0, mark.size()), part.first).size() -
           replaced(clean.substr(0, mark.size()), " ", mark).size();
  }

  /// Encodes T5's words: separated by white space, each with a mark before it, and split again at marks inside.
  void encode_unigram(std::string_view text, std::vector<int32_t>& ids) const {
    const std::string& mark = spec().metaspace->replacement;
    for (size_t begin = 0, next = 0; begin < text.size(); begin = next) {
      if (unicode::is_space(unicode::next_code_point(text, next))) continue;
      size_t end = next;
      for (size_t behind = next; behind < text.size() && !unicode::is_space(unicode::next_code_point(text, behind));)
        end = behind;
      std::string word(text.substr(begin, end - begin));
      if (!word.starts_with(mark)) word.insert(0, mark);
      for (size_t from = 0; from < word.size();) {
        const size_t to = std::min(word.find(mark, from + mark.size()), word.size());
        unigram_->encode_word(std::string_view(word).substr(from, to - from), ids);
        from = to;
      }
      next = end;
    }
  }

  void encode_words(std::string_view text, std::vector<int32_t>& ids) const {
    if (unigram_) return encode_unigram(text, ids);
    if (word_piece_) {
      for (std::string_view word : bert_words(text)) word_piece_->encode_word(word, ids);
      return;
    }
    for (const std::string_view word : words_of(text)) model_.encode_word(word, ids);
  }

  /// Returns the words of the byte-pair encoding. They need not cover the whole text.
  std::vector<std::string_view> words_of(std::string_view text) const {
    if (!spec().metaspace || !spec().metaspace->split) return split(text, spec().split);
    const std::string& mark = spec().metaspace->replacement;
    std::vector<std::string_view> words;
    for (size_t begin = 0; begin < text.size();) {
      const size_t from = text.substr(begin).starts_with(mark) ? begin + mark.size() : begin;
      const size_t end = std::min(text.find(mark, from), text.size());
      words.push_back(text.substr(begin, end - begin));
      begin = end;
    }
    return words;
  }

  /// Returns the byte positions in the text at which the ids of encode_words() end.
  std::vector<size_t> ends_of(std::string_view text) const {
    std::vector<size_t> ends;
    std::vector<int32_t> ids;
    for (const std::string_view word : words_of(text)) {
      ids.clear();
      model_.encode_word(word, ids);
      const size_t begin = static_cast<size_t>(word.data() - text.data());
      for (const size_t end : model_.ends_of(word, ids)) ends.push_back(begin + end);
    }
    return ends;
  }

  BpeModel model_;
  std::optional<UnigramModel> unigram_;
  std::optional<WordPieceModel> word_piece_;
  std::vector<PrecompiledCharacters> characters_;
  AddedTokenFinder raw_tokens_, normalized_tokens_;
};

}  // namespace

std::vector<int32_t> Tokenizer::encode_with_positions(const std::string& text, TextPositions& positions) const {
  positions.ids.clear();
  for (const size_t byte : positions.bytes) positions.ids.push_back(encode_plain(text.substr(0, byte)).size());
  return encode_plain(text);
}

std::vector<int32_t> Tokenizer::encode(const std::string& text, const EncodeOptions& options) const {
  if (!options.add_special_tokens) return encode_plain(text, options);
  std::vector<int32_t> ids = prefix_ids();
  for (const std::vector<int32_t>& more : {encode_plain(text, options), suffix_ids()})
    ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  DecodeOptions whole = options;
  whole.whole_bytes = true;
  const std::unique_ptr<TextStream> stream = text_stream(whole);
  std::string text;
  for (const int32_t id : ids) text += stream->push(id);
  return text + stream->finish();
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& model_directory, const TokenizerRules& rules) {
  TokenizerSpec spec = read_tokenizer_files(model_directory, rules);
  if (spec.sentencepiece) return make_sentencepiece_tokenizer(std::move(spec));
  return std::make_unique<BpeTokenizer>(std::move(spec));
}

}  // namespace blipft
