// TokenizerSpec: the contents of a model directory's tokenizer files, read into one description.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "blipft/tokenizer_rules.h"
#include "text/pattern.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_bpe.h"
#include "text/tokenizer_decode.h"
#include "text/tokenizer_unigram.h"
#include "text/tokenizer_wordpiece.h"
#include "text/unicode.h"

namespace blipft {

/// A step of text normalisation.
struct NormalizerStep {
  enum class Kind { form, small_letters, prepend, replace, precompiled, bert } kind = Kind::form;
  std::string from;  ///< replace: what is replaced, everywhere, if there is no pattern; precompiled: precompiled_charsmap
  std::string to;    ///< replace: by what; prepend: what is put before a text that is not empty
  BertText bert;
  unicode::NormalForm form = unicode::NormalForm::nfc;
  std::shared_ptr<const Pattern> pattern = nullptr;
};

/// Spaces become a visible character, which may also be put before a text that does not start with it.
struct Metaspace {
  enum class Prepend { never, first, always };  ///< first: only at the very start, not behind an added token
  std::string replacement = "\u2581";
  Prepend prepend = Prepend::always;
  bool split = true;  ///< words start at each replacement; false: a piece of text is one word
};

/// A tokenizer.model, read as that LlamaTokenizer of transformers reads it that works with the sentencepiece library
/// (transformers 4, `use_fast=False`).
struct SentencePieceSpec {
  std::string model;  ///< the file's bytes
  bool legacy = true;
  bool add_prefix_space = true;  ///< only looked at when not legacy
  std::string unknown_token = "<unk>";
};

/// The rule by which CodeLlamaTokenizer encodes a text with a mark in it: it puts the texts before and behind the mark
/// in an order in which a model can write the text that belongs between them.
struct Infilling {
  std::string mark;  ///< "<FILL_ME>"
  int32_t prefix_id = -1, suffix_id = -1, middle_id = -1;
};

struct TokenizerSpec {
  std::string file;  ///< tokenizer.json, vocab.json, vocab.txt or tokenizer.model: for messages
  BpeSpec bpe;       ///< of tokenizer.model: the vocabulary alone
  std::vector<NormalizerStep> normalizer;
  std::vector<SplitStep> split;
  bool add_prefix_space = false;  ///< byte-level: a space before text that does not start with one
  std::optional<Metaspace> metaspace;
  std::optional<SentencePieceSpec> sentencepiece;
  std::optional<UnigramSpec> unigram;  ///< in place of bpe, of which there is the vocabulary alone
  std::optional<WordPieceSpec> word_piece;  ///< likewise
  std::vector<AddedToken> added;                ///< each content once
  std::unordered_map<std::string, size_t> added_places;  ///< content -> index of added
  int32_t largest_added_id = -1;
  std::vector<int32_t> prefix_ids, suffix_ids;  ///< put around every text
  bool split_special_tokens = false;            ///< special tokens in a text are text
  std::optional<Infilling> infilling;
  DecoderSpec decoder;
  int32_t pad_id = -1;                          ///< -1: there is none
  std::optional<int32_t> bos_id, eos_id;
  std::string bos_token, eos_token;
};

/// Reads tokenizer.json, else vocab.json + merges.txt, else vocab.txt, else tokenizer.model, and beside them
/// tokenizer_config.json, and (where that has no added_tokens_decoder) special_tokens_map.json and
/// added_tokens.json, with the meaning that AutoTokenizer of transformers 5 gives them (tokenizer.model: see
/// SentencePieceSpec). A directory with OPT's vocab.json and merges.txt and none of the others is read as OPT's
/// tokenizer.
/// `rules` are the model family's. Throws UserError naming the file, what was found and what is supported.
TokenizerSpec read_tokenizer_files(const std::string& directory, const TokenizerRules& rules);

/// Ids are below this: the model's tables have a place for each.
constexpr int32_t max_token_ids = 1 << 24;
/// The maximum size of tokenizer.json, merges.txt and similar files. The largest known ones have about 35 MB.
constexpr int64_t max_tokenizer_bytes = int64_t{256} << 20;

/// The id of a token, added or not.
std::optional<int32_t> id_of(const TokenizerSpec& spec, const std::string& content);
/// Takes all added tokens out; those of the vocabulary stay in it.
void clear_added(TokenizerSpec& spec);
/// Adds a token or changes its flags. One that has no id yet gets the next free one.
void add_token(TokenizerSpec& spec, AddedToken token);

}  // namespace blipft
