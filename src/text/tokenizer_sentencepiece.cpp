// tokenizer.model with the sentencepiece library, like the LlamaTokenizer that uses that library.
#include "text/tokenizer_sentencepiece.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <unordered_set>

#include "blipft/error.h"
#include "text/tokenizer_base.h"

namespace blipft {
namespace {

const std::string word_start = "\u2581";  // SentencePiece's symbol for the space before a word

std::unique_ptr<sentencepiece::SentencePieceProcessor> load(const std::string& model, const std::string& file) {
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const auto status = processor->LoadFromSerializedProto(model);
  BLIPFT_USER_CHECK(status.ok(), file, ": not a SentencePiece model (", status.ToString(),
                    "); the file is broken or incomplete, or of another tokenizer. Save the tokenizer with "
                    "transformers' save_pretrained, which writes tokenizer.json");
  return processor;
}

class SentencePieceTokenizer final : public FileTokenizer {
 public:
  explicit SentencePieceTokenizer(TokenizerSpec files)
      : FileTokenizer(std::move(files)), settings_(*spec().sentencepiece) {
    std::string model = settings_.model;
    // protobuf merges successive messages in its wire format: this sets normalizer_spec.add_dummy_prefix = false.
    if (!settings_.legacy) model += std::string("\x1A\x02\x18\x00", 4);
    processor_ = load(model, spec().file);
    settings_.model.clear();
    if (const auto found = spec().bpe.vocab.find(word_start); found != spec().bpe.vocab.end())
      word_start_id_ = found->second;
    for (const AddedToken& token : spec().added) {
      BLIPFT_USER_CHECK(!token.single_word, spec().file, ": the added token \"", brief(token.content),
                        "\" has single_word; with tokenizer.model that is not supported");
      added_.add(token, token.content);
      if (token.special) special_ids_.insert(token.id);
    }
    unknown_length_ = pieces_of(settings_.unknown_token).size();
  }

 private:
  std::vector<int32_t> encode_text(const std::string& text, const EncodeOptions& options,
                                   TextPositions& positions) const override {
    std::vector<int32_t> ids;
    if (text.empty()) return ids;
    const std::string prefixed = settings_.legacy ? text : with_prefix(text);
    std::vector<TextPiece> pieces;
    if (options.split_special_tokens) {
      pieces.push_back({-1, prefixed});  // added tokens are not searched for
    } else {
      added_.split(prefixed, false, pieces);
    }
    size_t searched = 0, shorter = 0;        // bytes of the text before the position, and how many fewer the prefixed text has
    for (const TextPiece& piece : pieces) {
      const size_t begin = static_cast<size_t>(piece.text.data() - prefixed.data()), end = begin + piece.text.size();
      const size_t first_id = ids.size();
      std::vector<IdStart> starts;           // filled if a position lies in the piece
      piece.id >= 0 ? ids.push_back(piece.id) : append_text(std::string(piece.text), ids);
      while (positions.ids.size() < positions.bytes.size()) {
        const size_t byte = positions.bytes[positions.ids.size()];
        if (!settings_.legacy) advance(text, byte, searched, shorter);
        const size_t position = byte + (settings_.legacy ? 0 : prefix().size()) - shorter;
        if (position >= end) break;
        if (piece.id < 0 && starts.empty()) starts = id_starts(std::string(piece.text));
        positions.ids.push_back(first_id + index_at(starts, position - begin));
      }
    }
    // The prefix before a special token is removed.
    if (!settings_.legacy && ids.size() > 1 && ids[0] == word_start_id_ && special_ids_.contains(ids[1])) {
      ids.erase(ids.begin());
      for (size_t& id : positions.ids) id -= id > 0;
    }
    return ids;
  }

  std::string_view prefix() const { return settings_.add_prefix_space ? std::string_view(word_start) : std::string_view(); }

  // Continues from the previous position, so that many positions take linear time.
  static void advance(std::string_view text, size_t byte, size_t& searched, size_t& shorter) {
    for (size_t found; (found = text.substr(0, byte).find(word_start, searched)) != std::string_view::npos;) {
      searched = found + word_start.size();
      shorter += word_start.size() - 1;      // a space replaces it
    }
    searched = std::max(searched, byte - std::min(byte, word_start.size() - 1));
  }

  std::string with_prefix(const std::string& text) const {
    std::string out(prefix());
    for (size_t at = 0; at < text.size();) {
      const size_t found = std::min(text.find(word_start, at), text.size());
      out.append(text, at, found - at);
      if (found < text.size()) out += ' ';
      at = found + word_start.size();
    }
    return out;
  }

  /// The library strips a leading space if it adds none itself. So this encodes the unknown token's text followed by
  /// the piece, and removes the ids of the former.
  void append_text(const std::string& text, std::vector<int32_t>& ids) const {
    const bool protect = protects(text);
    const std::vector<int> found = pieces_of(protect ? settings_.unknown_token + text : text);
    const size_t skipped = protect && found.size() >= unknown_length_ ? unknown_length_ : 0;
    ids.insert(ids.end(), found.begin() + static_cast<ptrdiff_t>(skipped), found.end());
  }

  bool protects(const std::string& text) const {
    return !settings_.legacy && (text.starts_with(word_start) || text.starts_with(' '));
  }

  struct IdStart {
    size_t byte, index;                      // position in the text, and index in the ids of append_text()
  };

  /// Returns the positions at which the ids of a text start, ascending. If several ids start at the same byte, only the
  /// first of them is included.
  std::vector<IdStart> id_starts(const std::string& text) const {
    const bool protect = protects(text);
    const auto proto = processor_->EncodeAsImmutableProto(protect ? settings_.unknown_token + text : text);
    const size_t skipped = protect && proto.pieces_size() >= unknown_length_ ? unknown_length_ : 0;
    const size_t before = protect ? settings_.unknown_token.size() : 0;
    std::vector<IdStart> starts;
    size_t i = 0;
    for (const auto& piece : proto.pieces()) {
      const size_t index = i++;
      if (index < skipped) continue;
      const size_t byte = piece.begin() - std::min<size_t>(piece.begin(), before);
      if (starts.empty() || byte > starts.back().byte) starts.push_back({byte, index - skipped});
    }
    return starts;
  }

  /// Returns the index of the last id that starts at or before a byte; 0 if there is none.
  static size_t index_at(const std::vector<IdStart>& starts, size_t byte) {
    const auto behind = std::upper_bound(starts.begin(), starts.end(), byte,
                                         [](size_t position, const IdStart& start) { return position < start.byte; });
    return behind == starts.begin() ? 0 : std::prev(behind)->index;
  }

  std::vector<int> pieces_of(const std::string& text) const {
    std::vector<int> ids;
    const auto status = processor_->Encode(text, &ids);
    BLIPFT_USER_CHECK(status.ok(), spec().file, ": the sentencepiece library cannot encode a text (",
                      status.ToString(), "); the file may be broken");
    return ids;
  }

  SentencePieceSpec settings_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  AddedTokenFinder added_{AddedTokenFinder::Space::python};
  std::unordered_set<int32_t> special_ids_;
  int32_t word_start_id_ = -1;
  size_t unknown_length_ = 0;
};

}  // namespace

std::unordered_map<std::string, int32_t> sentencepiece_vocab(const std::string& model, const std::string& file) {
  const auto processor = load(model, file);
  std::unordered_map<std::string, int32_t> vocab;
  for (int id = 0; id < processor->GetPieceSize(); ++id) vocab.emplace(processor->IdToPiece(id), id);
  return vocab;
}

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(TokenizerSpec spec) {
  return std::make_unique<SentencePieceTokenizer>(std::move(spec));
}

}  // namespace blipft
