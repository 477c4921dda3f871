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

/// A step of text normalization.
struct NormalizerStep {
  enum class Kind { form, small_letters, prepend, replace, precompiled, bert } kind = Kind::form;
  std::string from;  ///< replace: the text to replace if there is no pattern; precompiled: precompiled_charsmap
  std::string to;    ///< replace: the replacement; prepend: the prefix of a text that is not empty
  BertText bert;
  unicode::NormalForm form = unicode::NormalForm::nfc;
  std::shared_ptr<const Pattern> pattern = nullptr;
};

/// A Metaspace pre-tokenizer: replaces spaces by a visible character, and adds it before a text that does not start
/// with it, as `prepend` says.
struct Metaspace {
  enum class Prepend { never, first, always };  ///< first: only at the start of the whole text, not after an added token
  std::string replacement = "\u2581";
  Prepend prepend = Prepend::always;
  bool split = true;  ///< true: words start at each replacement; false: a piece of text is one word
};

/// A tokenizer.model, as read by the LlamaTokenizer of transformers 4 with `use_fast=False`, which uses the
/// sentencepiece library.
struct SentencePieceSpec {
  std::string model;  ///< the file's bytes
  bool legacy = true;
  bool add_prefix_space = true;  ///< ignored if legacy
  std::string unknown_token = "<unk>";
};

/// CodeLlamaTokenizer's rule for a text with a mark: it reorders the texts before and after the mark so that a model
/// can generate the text between them.
struct Infilling {
  std::string mark;  ///< "<FILL_ME>"
  int32_t prefix_id = -1, suffix_id = -1, middle_id = -1;
};

struct TokenizerSpec {
  std::string file;  ///< tokenizer.json, vocab.json, vocab.txt or tokenizer.model: for messages
  BpeSpec bpe;       ///< with tokenizer.model only the vocabulary
  std::vector<NormalizerStep> normalizer;
  std::vector<SplitStep> split;
  bool add_prefix_space = false;  ///< byte-level: adds a space before text that does not start with one
  std::optional<Metaspace> metaspace;
  std::optional<SentencePieceSpec> sentencepiece;
  std::optional<UnigramSpec> unigram;  ///< used instead of bpe, which then has only the vocabulary
  std::optional<WordPieceSpec> word_piece;  ///< used instead of bpe
  std::vector<AddedToken> added;                ///< added tokens, each content once
  std::unordered_map<std::string, size_t> added_indices;  ///< content -> index of added
  int32_t largest_added_id = -1;
  std::vector<int32_t> prefix_ids, suffix_ids;  ///< ids before and after every text
  bool split_special_tokens = false;            ///< true: special tokens in a text are ordinary text
  std::optional<Infilling> infilling;
  DecoderSpec decoder;
  int32_t pad_id = -1;                          ///< -1: there is none
  std::optional<int32_t> bos_id, eos_id;
  std::string bos_token, eos_token;
};

/// Reads tokenizer.json, else vocab.json + merges.txt, else vocab.txt, else tokenizer.model. Also reads
/// tokenizer_config.json and, if that has no added_tokens_decoder, special_tokens_map.json and added_tokens.json, with
/// the meaning that AutoTokenizer of transformers 5 gives them (tokenizer.model: see SentencePieceSpec). A directory
/// with OPT's vocab.json and merges.txt and none of the others is read as OPT's tokenizer. `rules` are those of the
/// model's family. Throws UserError naming the file, the found value and the supported ones.
TokenizerSpec read_tokenizer_files(const std::string& directory, const TokenizerRules& rules);

/// Ids are below this limit, because the model's tables have an entry for each.
constexpr int32_t max_token_ids = 1 << 24;
/// The maximum size of tokenizer.json, merges.txt and similar files. The largest known ones have about 35 MB.
constexpr int64_t max_tokenizer_bytes = int64_t{256} << 20;

/// Returns the id of a token, added or not.
std::optional<int32_t> id_of(const TokenizerSpec& spec, const std::string& content);
/// Removes all added tokens; those of the vocabulary stay in it.
void clear_added(TokenizerSpec& spec);
/// Adds a token or changes its flags. A token without an id gets the next free one.
void add_token(TokenizerSpec& spec, AddedToken token);

}  // namespace blipft
