// --prompt and --chat; see terminal.h.
#include "generate/terminal.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "base/standard_output.h"
#include "blipft/error.h"
#include "blipft/prompts.h"
#include "datasets/record_text.h"
#include "engine/decode/prompt_set.h"
#include "engine/run_data.h"
#include "generate/answers/answer_text.h"
#include "generate/generation.h"
#include "io/file.h"
#include "liveness/launcher.h"
#include "loading/picture_reader.h"
#include "loading/text_shapes.h"
#include "text/chat_template.h"
#include "text/unicode.h"

namespace blipft {

namespace {

constexpr int64_t kMaxPictures = 64;         // of a conversation

// A conversation, and the pictures that its messages have as parts.
struct Dialogue {
  Conversation conversation;
  std::vector<PictureFile> pictures;
};

// A model that answers one text after the other.
class Terminal {
 public:
  Terminal(const GenerationSource& source, const World& world)
      : config_(source.config), generation_(source, world), inputs_(generation_.inputs()), reader_(open_picture_reader(config_, inputs_)),
        texts_(text_settings(config_.data, config_, config_.model.path, generation_.tokenizer())), answers_(generation_.tokenizer(), generation_.settings()) {}

  // Returns true if the run file has a prompt style for instructions, the form in which the model was trained.
  bool has_style() const {
    return config_.locations.contains("data.prompt_style") && texts_.prompt_style != PromptStyle::chat && !has_picture();
  }
  // Returns true if the prompt is a conversation in a chat template: the model's files or the run file have a template,
  // and the run file has no prompt style for instructions.
  bool converses() const { return texts_.chat_template && !has_style(); }
  bool has_picture() const { return inputs_.has_picture(); }
  bool takes_pictures() const { return has_picture() || reader_; }

  // Returns a new conversation, with `system` as its first message unless it is empty.
  Dialogue begin(const std::string& system) const {
    Dialogue dialogue;
    Conversation& conversation = dialogue.conversation;
    if (system.empty()) return dialogue;
    BLIPFT_USER_CHECK(converses(), "--system: found ", has_style() ? "data.prompt_style, whose prompts have" : "a model "
                      "without a chat template, whose prompts have", " no system message. Set data.chat_template",
                      has_style() ? " and data.prompt_style: chat" : "", ", or write the text into the prompt.");
    conversation.messages.push_back({{"role", "system"}, {"content", system}});
    return dialogue;
  }

  // Adds a message of the user. It begins with the pictures that were read since the last one.
  void ask(Dialogue& dialogue, const std::string& text) const {
    nlohmann::ordered_json content = text;
    if (!next_pictures_.empty()) {
      content = nlohmann::ordered_json::array();
      for (size_t i = 0; i < next_pictures_.size(); ++i) content.push_back({{"type", "image"}});
      if (!text.empty()) content.push_back({{"type", "text"}, {"text", text}});
    }
    dialogue.pictures.insert(dialogue.pictures.end(), next_pictures_.begin(), next_pictures_.end());
    dialogue.conversation.messages.push_back({{"role", "user"}, {"content", content}});
  }
  void forget_pictures() { next_pictures_.clear(); }

  void read_picture(const std::string& file) {
    if (reader_) {
      BLIPFT_USER_CHECK(converses(), file, ": found no chat template in ", generation_.config().model.path,
                        ", which puts pictures into a prompt. Set data.chat_template",
                        has_style() ? " and data.prompt_style: chat." : ".");
      (void)reader_->sizes({{file, file}}, file);  // throws if it is no picture
      next_pictures_.push_back({file, file});
      return;
    }
    BLIPFT_USER_CHECK(has_picture(), file, ": the model in ", generation_.config().model.path,
                      " reads no picture; leave --image and /picture out");
    const std::string bytes = io::read_whole_file(file, max_picture_bytes);
    pixels_ = pixels_of({bytes.begin(), bytes.end()}, file, inputs_.picture_size,
                        picture_decoding(config_));
  }

  // Returns the request for the next answer of a conversation. Without a chat template the prompt is only the last
  // message. Throws UserError with `remedy` if the prompt has more than `maximum` tokens.
  TextRequest request(const Dialogue& dialogue, int64_t maximum, const std::string& location, const std::string& remedy) const {
    BLIPFT_USER_CHECK(!has_picture() || !pixels_.empty(), "the model in ", generation_.config().model.path,
                      " reads a picture; give --image FILE");
    const Conversation& conversation = dialogue.conversation;
    const std::string last = content_text(conversation.messages.back());
    const PromptSettings settings{.vocabulary = inputs_.text.vocabulary, .ends = inputs_.has_source(), .pictures = reader_.get()};
    TextRequest request;
    const auto pictures = static_cast<int64_t>(dialogue.pictures.size());
    BLIPFT_USER_CHECK(pictures <= kMaxPictures, location, ": found ", pictures, " pictures, expected at most ", kMaxPictures, ". ", remedy);
    if (pictures > 0) {
      PromptedSample prompt =
          prompt_with_pictures(conversation, dialogue.pictures, generation_.tokenizer(), texts_, settings, location);
      request.ids = std::move(prompt.ids);
      request.pictures = std::move(prompt.pictures);
    } else if (converses() && !last.empty())
      request.ids = prompt_of_conversation(conversation, generation_.tokenizer(), texts_, settings, location);
    else
      request.ids = prompt_of_text(has_style() && !last.empty() ? prompt_of(texts_.prompt_style, last, "", location) : last,
                                   generation_.tokenizer(), settings, location);
    request.instruction = generation_.model().instructions.ids(last, location);
    const auto ids = static_cast<int64_t>(request.ids.size());
    BLIPFT_USER_CHECK(ids > 0, location, ": the prompt is empty, and the tokenizer puts nothing before a text; give some text");
    BLIPFT_USER_CHECK(ids <= maximum, location, ": found ", ids, " tokens, expected at most ", maximum, ". ", remedy);
    request.new_tokens = generation_.settings().new_tokens(inputs_, ids);
    request.pixels = pixels_;
    if (request.pictures.empty()) return request;
    request.pixels = reader_->read(dialogue.pictures, request.pictures);
    reader_->set_patches(request.pictures, request.pixels.data());
    return request;
  }

  int64_t max_ids() const { return generation_.model().max_ids(); }
  int64_t max_instruction() const { return generation_.model().instructions.max_tokens; }

  // Returns the rows of the largest picture, at most as many as 4,096 tokens: data.max_text_tokens counts no rows of pictures.
  int64_t max_picture_rows() const { return reader_ ? std::min<int64_t>(reader_->max_cells(), 4096) : 0; }
  // Returns what pictures in a prompt of `maximum` tokens need at most.
  PictureShape largest_pictures(int64_t maximum) const {
    if (!reader_) return {};
    return {maximum, kMaxPictures, maximum, inputs_.patches.window > 0 ? maximum : 0};
  }
  PictureShape pictures_in(const TextRequest& request) const { return pictures_of(request.pictures, inputs_.patches); }

  // Loads the weights, for prompts of at most `prompt` tokens with `pictures` and instructions of at most `instruction`.
  void load(int64_t prompt, int64_t instruction, const PictureShape& pictures) {
    generation_.load({prompt, 1, 0, instruction, pictures});
    std::fprintf(stderr, "%s\n%s\n", generation_.text().c_str(), generation_.settings().text().c_str());
  }

  // Prints the answer while it is generated, and returns its text.
  std::string answer(const TextRequest& request) {
    const bool streams = generation_.settings().beams == 1 && generation_.settings().stop.empty();
    const bool terminal = stdout_is_terminal();
    const std::unique_ptr<TextStream> stream = generation_.tokenizer().text_stream();
    std::string text;
    size_t printed = 0;
    GeneratorCalls calls;
    calls.next = [&, given = false]() mutable {
      return std::exchange(given, true) ? std::nullopt : std::optional<TextRequest>(request);
    };
    calls.stops = [&](std::span<const int32_t> grown) { return answers_.stops(grown); };
    if (streams) calls.grown = [&](int64_t, std::span<const int32_t> grown) {
      for (; printed < grown.size(); ++printed) std::fputs(printable(stream->push(grown[printed]), terminal).c_str(), stdout);
      std::fflush(stdout);
    };
    calls.done = [&](const TextResult& result) {
      text = answers_.of(result.texts.at(0).ids);
      if (streams) std::printf("%s\n", printable(stream->finish(), terminal).c_str());
      else
        for (const GeneratedText& one : result.texts) std::printf("%s\n", printable(answers_.of(one.ids), terminal).c_str());
      std::fflush(stdout);
      const auto tokens = static_cast<double>(generation_.settings().beams == 1 ? result.texts.at(0).ids.size() : 0);
      if (tokens > 0 && result.seconds > 0)
        std::fprintf(stderr, "%d tokens, %.1f tokens/s%s\n", static_cast<int>(tokens), tokens / result.seconds,
                     result.texts.at(0).end == TextEnd::length ? "; ended by its length (generate.max_new_tokens)" : "");
    };
    generation_.run(calls);
    return text;
  }

 private:
  const Config& config_;
  Generation generation_;
  const ModelInputs inputs_;
  const std::shared_ptr<const PictureReader> reader_;  // null: the model reads no pictures in texts
  std::vector<PictureFile> next_pictures_;   // of the next message
  const TextSettings texts_;
  const AnswerText answers_;
  std::vector<uint8_t> pixels_;
};

// The turns of --chat.
class Chat {
 public:
  Chat(Terminal& terminal, const std::string& system)
      : terminal_(terminal), start_(terminal.begin(system)), conversation_(start_) {}

  // Answers a line. Throws UserError if it cannot be answered, for example because the conversation has become longer
  // than `maximum` tokens; the conversation is then unchanged.
  void line(const std::string& text, int64_t maximum) {
    static const std::string picture = "/picture ";
    if (text.find_first_not_of(" \t\r") == std::string::npos) return;
    if (text == "/new") return conversation_ = start_, terminal_.forget_pictures();
    if (text.starts_with(picture)) return terminal_.read_picture(text.substr(picture.size()));
    Dialogue next = terminal_.converses() ? conversation_ : Dialogue();
    terminal_.ask(next, text);
    const std::string remedy = concat("Type /new for another conversation, or start with a larger data.max_text_tokens",
                                      terminal_.max_picture_rows() > 0 ? " or a smaller data.max_pixels." : ".");
    const TextRequest request = terminal_.request(next, maximum, "the conversation", remedy);
    next.conversation.messages.push_back({{"role", "assistant"}, {"content", terminal_.answer(request)}});
    conversation_ = std::move(next);
    terminal_.forget_pictures();
  }

 private:
  Terminal& terminal_;
  const Dialogue start_;
  Dialogue conversation_;
};

}  // namespace

void answer_prompt(const GenerationSource& source, const TerminalRequest& request, const World& world) {
  Terminal terminal(source, world);
  if (!request.image.empty()) terminal.read_picture(request.image);
  Dialogue dialogue = terminal.begin(request.system);
  terminal.ask(dialogue, unicode::repair_utf8(request.prompt));
  const TextRequest text = terminal.request(dialogue, terminal.max_ids(), "--prompt",
                                             request.image.empty() ? "Give a shorter one." : "Give a shorter one, or set data.max_pixels.");
  terminal.load(static_cast<int64_t>(text.ids.size()), static_cast<int64_t>(text.instruction.size()), terminal.pictures_in(text));
  (void)terminal.answer(text);
}

void chat(const GenerationSource& source, const TerminalRequest& request, const World& world) {
  Terminal terminal(source, world);
  if (!request.image.empty()) terminal.read_picture(request.image);
  Chat turns(terminal, request.system);
  const int64_t maximum = std::min(source.config.data.max_text_tokens + terminal.max_picture_rows(), terminal.max_ids());
  terminal.load(maximum, terminal.max_instruction(), terminal.largest_pictures(maximum));
  const bool interactive = ::isatty(STDIN_FILENO) == 1;
  std::fprintf(stderr, "%s%s Ctrl-D ends.\n",
               terminal.converses() ? "/new begins another conversation."
               : terminal.has_style() ? "data.prompt_style is given: each line is answered by itself."
                                      : "There is no chat template: each line is answered by itself.",
               terminal.takes_pictures() ? " /picture FILE shows a picture." : "");
  std::string line;
  for (;;) {
    if (interactive) std::fputs("> ", stderr);
    if (!std::getline(std::cin, line)) break;
    if (line.ends_with('\r')) line.pop_back();
    try {
      turns.line(unicode::repair_utf8(line), maximum);
    } catch (const UserError& error) {
      if (!interactive) throw;
      std::fprintf(stderr, "%s\n", printable(error.what(), true).c_str());
    }
  }
  if (interactive) std::fputs("\n", stderr);
}

}  // namespace blipft
