// Text: tokenizers, and how records become text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "blipft/batch.h"
#include "blipft/choices.h"
#include "blipft/key_locations.h"
#include "blipft/tokenizer_rules.h"

namespace blipft {

/// The maximum size of a caption, a JSON record or a line of metadata.
constexpr int64_t max_text_bytes = int64_t{64} << 20;

/// Options of encoding; names and defaults are those of Hugging Face tokenizers.
struct EncodeOptions {
  bool add_special_tokens = true;     ///< adds the tokenizer's prefix_ids() and suffix_ids()
  bool split_special_tokens = false;  ///< encodes special tokens in the text (a literal "</s>") as ordinary text
};

/// Positions in a text and in its ids.
struct TextPositions {
  std::vector<size_t> bytes;          ///< positions in the text: first bytes of characters, ascending
  std::vector<size_t> ids;            ///< [bytes]: the index of the first id that covers that character
};

/// Options of decoding.
struct DecodeOptions {
  bool skip_special_tokens = true;    ///< special tokens (by the tokenizer's files) give no text
  bool whole_bytes = false;           ///< streams hold back tokens of single bytes until another token follows, so that
                                      ///< the pieces equal the text of decode() even if the bytes are no UTF-8
};

/// Decodes ids one by one. Used by one thread; the tokenizer must outlive it.
class TextStream {
 public:
  virtual ~TextStream() = default;
  /// Returns the text that this id completes: whole characters, possibly none. Unknown ids give no text.
  virtual std::string push(int32_t id) = 0;
  /// Returns the rest of the text, with U+FFFD for bytes that form no character. The next id begins a new text.
  virtual std::string finish() = 0;
};

/// Encodes text to token ids and decodes ids to text. Thread-safe after construction.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Returns the ids of `text` without prefix_ids() and suffix_ids(); options.add_special_tokens is ignored. Ill-formed
  /// UTF-8 is read as U+FFFD.
  virtual std::vector<int32_t> encode_plain(const std::string& text, const EncodeOptions& options = {}) const = 0;
  /// Returns encode_plain(text), and sets positions.ids for positions.bytes. This default implementation is only
  /// correct if no id covers several characters.
  virtual std::vector<int32_t> encode_with_positions(const std::string& text, TextPositions& positions) const;
  /// Return the special tokens that the Hugging Face tokenizer adds before (OPT: `</s>`, LLaMA: `<s>`) and after a
  /// text.
  virtual std::vector<int32_t> prefix_ids() const = 0;
  virtual std::vector<int32_t> suffix_ids() const = 0;
  /// Returns the ids of `text`, by default with these special tokens.
  std::vector<int32_t> encode(const std::string& text, const EncodeOptions& options = {}) const;
  /// Returns the text of ids, equal to tokenizer.decode() of transformers. Throws UserError naming the file if the
  /// decoder in the tokenizer's files is not supported.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;
  /// Returns a stream that decodes ids like decode(), piece by piece, with one difference: if separate tokens form
  /// bytes that are no UTF-8, the stream keeps the characters before them, and decode() does not.
  virtual std::unique_ptr<TextStream> text_stream(const DecodeOptions& options = {}) const = 0;
  /// Returns the largest id + 1, including added tokens. It may exceed the model's vocabulary.
  virtual int64_t vocab_size() const = 0;
  /// Returns the id for padding: pad_token of the files, else the token "<pad>", else the end id, else -1.
  virtual int32_t pad_id() const = 0;
  virtual std::optional<int32_t> bos_id() const { return std::nullopt; }  ///< bos_token, if the files name one
  virtual std::optional<int32_t> eos_id() const { return std::nullopt; }  ///< eos_token, if the files name one
  virtual std::string bos_token() const { return {}; }                    ///< text of bos_token; empty: none
  virtual std::string eos_token() const { return {}; }
};
/// Reads tokenizer.json, else vocab.json + merges.txt, else vocab.txt (BERT), else tokenizer.model (SentencePiece), and
/// the files of special tokens in the same folder. `rules` are those of the model's family. Throws UserError naming the
/// missing or broken file. A part of tokenizer.json of an unknown type is an error; an unknown decoder only when
/// decoding.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& model_directory, const TokenizerRules& rules);
/// Returns true if the directory has one of these files.
bool has_tokenizer(const std::string& model_directory);

/// Encodes the instructions that a model reads in addition to its texts (ModelInputs::instruction).
struct InstructionReader {
  std::shared_ptr<const Tokenizer> tokenizer; ///< null: the model reads no instructions
  int64_t vocabulary = 0;
  int64_t max_tokens = 0;                     ///< longer instructions are cut at the end, before suffix_ids()
  /// Returns the ids of an instruction; empty without a tokenizer. Throws UserError with `name` if an id is not below
  /// the vocabulary.
  std::vector<int32_t> ids(const std::string& text, const std::string& name) const;
};
/// Opens a reader of instructions, which cuts them to `max_tokens` or to inputs.max_tokens, whichever is smaller.
InstructionReader open_instruction_reader(const std::string& model_directory, const StreamInputs& inputs,
                                          int64_t max_tokens);

class ChatTemplate;

/// A part of a sample's text.
struct TextSegment {
  std::string text;
  bool is_label = true;                       ///< true if its tokens are training targets
};

/// data.answers: the samples that are made of a prompt with several answers. `draw`: one answer in each pass, drawn
/// with the answers' weights; `all`: one sample for each answer; `common`: the answer with the largest weight, the
/// first one of several.
enum class AnswerSelection { draw, all, common };
BLIPFT_CHOICE_WORDS(AnswerSelection, "draw", "all", "common");
/// data.prompt_style: the form of prompts with instruction and input, unless the key is a text with {instruction}.
enum class PromptStyle { alpaca, none, chat };
BLIPFT_CHOICE_WORDS(PromptStyle, "alpaca", "none", "chat");
/// data.chat_template, unless the key is the name of a built-in format or the path of a template.
enum class TemplateChoice { automatic };
BLIPFT_CHOICE_WORDS(TemplateChoice, "auto");
/// data.train_on: the answers of a conversation that are training targets.
enum class TrainOn { all, last };
BLIPFT_CHOICE_WORDS(TrainOn, "all", "last");

/// The keys of the run file for reading the texts of records.
struct RecordSettings {
  std::map<std::string, std::string> keys;  ///< {key: its name in the records}, as prompt: question
  std::string pictures;                 ///< folder of the pictures that metadata names; empty: they are next to the
                                        ///< metadata
  bool allow_outside = false;           ///< true: pictures of an ImageFolder may be outside of it
  ChoiceOrText<PromptStyle> prompt_style = PromptStyle::alpaca;  ///< or a text with {instruction} in it
  TrainOn train_on = TrainOn::all;      ///< answers of a conversation that are training targets
  std::string chat_date = "2024-07-26"; ///< the current date in chat templates: YYYY-MM-DD
  std::string prompt_template;          ///< pictures: the text before a caption, or a text with {} for the prompt
  AnswerSelection answers = AnswerSelection::draw;  ///< how several answers to a prompt are used
  bool mask_prompt = false;             ///< true: only answers are training targets, not prompts
};
/// All keys of the run file that determine the texts of samples.
struct TextKeys : RecordSettings {
  /// The template of conversations: auto (the template of the model), the name of a built-in format, or a file.
  ChoiceOrText<TemplateChoice> chat_template = TemplateChoice::automatic;
  AutoSwitch append_eos = AutoSwitch::automatic;  ///< adds the end token after a text; auto: after answers
};

/// RecordSettings and the templates and tokens that belong to them, for the readers of datasets.
struct TextSettings : RecordSettings {
  std::shared_ptr<const ChatTemplate> chat_template;  ///< null: there is none
  std::shared_ptr<const ChatTemplate> tool_template;  ///< for conversations with tools; null: chat_template
  std::optional<bool> append_eos;           ///< nullopt: auto
  std::map<std::string, std::string> special_tokens;  ///< bos_token, eos_token... for chat templates; absent: none
  std::string chosen_template = {};         ///< text of the template that data.chat_template names; empty with auto
  bool for_prompts = false;                 ///< only read_prompt() will be called: labels may be absent
  bool pictures_in_texts = false;           ///< the chat template puts placeholders of pictures into texts
  bool refuses_pictures = false;            ///< the model could read them, but model.pictures is false
};
TextSettings text_settings(const TextKeys& keys, const KeyLocations& positions, const std::string& model_folder,
                           const Tokenizer& tokenizer);
/// Returns a warning if answers of conversations end with a text that the tokenizer splits into several tokens, so that
/// the model has no end token to generate; else "".
std::string end_token_warning(const TextSettings& settings, const Tokenizer& tokenizer, const std::string& model_path);
/// Returns the text of the template that data.chat_template names; empty with auto. Throws UserError for a file that
/// cannot be read.
std::string chosen_chat_template(const TextKeys& keys);

}  // namespace blipft
