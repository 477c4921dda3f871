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

/// How a text becomes ids; the names and defaults are those of Hugging Face tokenizers.
struct EncodeOptions {
  bool add_special_tokens = true;     ///< put the ids around the text that the tokenizer's files ask for
  bool split_special_tokens = false;  ///< special tokens in the text (a literal "</s>") are text like any other
};

/// Places in a text, and where its ids have them.
struct TextPositions {
  std::vector<size_t> bytes;          ///< first bytes of characters of the text, ascending
  std::vector<size_t> ids;            ///< of each, the index of the (first) id that stands for that character
};

/// How ids become text.
struct DecodeOptions {
  bool skip_special_tokens = true;    ///< tokens that the files call special leave no text
  bool whole_bytes = false;           ///< of a stream: tokens of single bytes wait for the next token that is none, so that
                                      ///< the pieces are decode()'s text even where the bytes are no UTF-8
};

/// Text from ids that come one after the other. To be used by one thread; the tokenizer must outlive it.
class TextStream {
 public:
  virtual ~TextStream() = default;
  /// The text that is known with this id: whole characters, perhaps none. Ids that no token has leave no text.
  virtual std::string push(int32_t id) = 0;
  /// The rest, with U+FFFD for what is no character. The next id begins another text.
  virtual std::string finish() = 0;
};

/// Text to token ids, and back. Thread-safe after construction.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Ids of `text` alone; options.add_special_tokens does not count. Ill-formed UTF-8 is read as U+FFFD.
  virtual std::vector<int32_t> encode_plain(const std::string& text, const EncodeOptions& options = {}) const = 0;
  /// encode_plain, and positions.ids for positions.bytes. This default is right where each character has ids of its own.
  virtual std::vector<int32_t> encode_with_positions(const std::string& text, TextPositions& positions) const;
  /// The special tokens that the Hugging Face tokenizer puts before (OPT: `</s>`, LLaMA: `<s>`) and behind every text.
  virtual std::vector<int32_t> prefix_ids() const = 0;
  virtual std::vector<int32_t> suffix_ids() const = 0;
  /// Ids of `text`; by default with these special tokens.
  std::vector<int32_t> encode(const std::string& text, const EncodeOptions& options = {}) const;
  /// The text of ids, by the decoder of the tokenizer's files: what tokenizer.decode() of transformers gives. Throws
  /// UserError naming the file where this decoder is not supported.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;
  /// Returns a stream that decodes ids as decode() does, piece by piece. One thing differs: if bytes that are no UTF-8
  /// follow each other as separate tokens, the pieces keep the characters before them, and decode() does not.
  virtual std::unique_ptr<TextStream> text_stream(const DecodeOptions& options = {}) const = 0;
  /// The largest id + 1, added tokens included: may be more than the model's vocabulary.
  virtual int64_t vocab_size() const = 0;
  /// The id that fills up rows: pad_token of the files, else the token "<pad>", else the end id; -1: none of these.
  virtual int32_t pad_id() const = 0;
  virtual std::optional<int32_t> bos_id() const { return std::nullopt; }  ///< bos_token, where the files name one
  virtual std::optional<int32_t> eos_id() const { return std::nullopt; }  ///< eos_token, where the files name one
  virtual std::string bos_token() const { return {}; }                    ///< its text; empty: the files name none
  virtual std::string eos_token() const { return {}; }
};
/// Reads tokenizer.json, else vocab.json + merges.txt, else vocab.txt (BERT), else tokenizer.model (SentencePiece), with
/// the special-token files beside them. `rules` are those of the model's family. Throws UserError naming the missing or
/// broken file.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& model_directory, const TokenizerRules& rules);
/// Returns true if the directory has one of these files.
bool has_tokenizer(const std::string& model_directory);

/// Encodes the instructions that a model reads in addition to its texts (ModelInputs::instruction).
struct InstructionReader {
  std::shared_ptr<const Tokenizer> tokenizer; ///< null: the model reads none
  int64_t vocabulary = 0;
  int64_t max_tokens = 0;                     ///< longer ones are cut in front of what stands behind every text
  /// Empty without a tokenizer. Throws UserError with `name` if an id is not below the vocabulary.
  std::vector<int32_t> ids(const std::string& text, const std::string& name) const;
};
/// Opens a reader of instructions, which cuts them to `max_tokens` or to inputs.max_tokens, whichever is smaller.
InstructionReader open_instruction_reader(const std::string& model_directory, const StreamInputs& inputs,
                                          int64_t max_tokens);

class ChatTemplate;

/// A part of a sample's text.
struct TextSegment {
  std::string text;
  bool is_label = true;                       ///< whether its tokens are to be predicted
};

/// data.answers: how a prompt with several answers becomes samples. `draw` uses one answer in each pass, drawn by the
/// answers' weights; `all` makes a sample of each answer; `common` uses the answer of the largest weight, the first if
/// several have it.
enum class AnswerSelection { draw, all, common };
BLIPFT_CHOICE_WORDS(AnswerSelection, "draw", "all", "common");
/// data.prompt_style of instruction and input, unless it is a text with {instruction} in it.
enum class PromptStyle { alpaca, none, chat };
BLIPFT_CHOICE_WORDS(PromptStyle, "alpaca", "none", "chat");
/// data.chat_template, unless it is the name of a format or the path of a template.
enum class TemplateChoice { automatic };
BLIPFT_CHOICE_WORDS(TemplateChoice, "auto");
/// data.train_on: which answers of a conversation.
enum class TrainOn { all, last };
BLIPFT_CHOICE_WORDS(TrainOn, "all", "last");

/// Settings of the texts of records, as the run file has them.
struct RecordSettings {
  std::map<std::string, std::string> keys;  ///< what the records call the keys that this program knows: prompt: question
  std::string pictures;                 ///< folder that the names of pictures in metadata are relative to; empty: looked
                                        ///< for beside the metadata
  bool allow_outside = false;           ///< an ImageFolder's pictures may lie outside of its folder
  ChoiceOrText<PromptStyle> prompt_style = PromptStyle::alpaca;  ///< or a text with {instruction} in it
  TrainOn train_on = TrainOn::all;      ///< which answers of a conversation are trained
  std::string chat_date = "2024-07-26"; ///< what templates with a date in them call today: YYYY-MM-DD
  std::string prompt_template;          ///< of pictures: what stands before a caption, or a text with {} for the prompt
  AnswerSelection answers = AnswerSelection::draw;  ///< how several answers to a prompt are used
  bool mask_prompt = false;             ///< true: only answers are training targets, not prompts
};
/// All keys of the run file that texts depend on.
struct TextKeys : RecordSettings {
  /// Template that formats chat messages: auto (the template of the model) or the name of a template.
  ChoiceOrText<TemplateChoice> chat_template = TemplateChoice::automatic;
  AutoSwitch append_eos = AutoSwitch::automatic;  ///< end token after a text; auto: after answers
};

/// How records become text, by the run file and the tokenizer; and what a dataset may read.
struct TextSettings : RecordSettings {
  std::shared_ptr<const ChatTemplate> chat_template;  ///< null: none is known
  std::shared_ptr<const ChatTemplate> tool_template;  ///< of conversations with tools; null: the same
  std::optional<bool> append_eos;           ///< nullopt: auto
  std::map<std::string, std::string> special_tokens;  ///< bos_token, eos_token... for chat templates; absent: none
  std::string chosen_template = {};         ///< the text of the template that data.chat_template names; empty with auto
  bool for_prompts = false;                 ///< only read_prompt() will be called: labels may be absent
};
TextSettings text_settings(const TextKeys& keys, const KeyLocations& positions, const std::string& model_folder,
                           const Tokenizer& tokenizer);
/// Returns a warning if answers of conversations end with a text that the tokenizer splits into several tokens, so that
/// the model has no end token to generate; else "".
std::string end_token_warning(const TextSettings& settings, const Tokenizer& tokenizer, const std::string& model_path);
/// The text of the template that data.chat_template names; empty with auto. Throws UserError for a file that cannot be read.
std::string chosen_chat_template(const TextKeys& keys);

}  // namespace blipft
