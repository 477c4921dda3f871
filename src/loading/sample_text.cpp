// The text of a sample; see sample_text.h.
#include "loading/sample_text.h"

#include <algorithm>
#include <numeric>

#include "blipft/error.h"
#include "blipft/philox.h"
#include "loading/picture_reader.h"

namespace blipft {

namespace {

void append(TokenizedText& text, const std::vector<int32_t>& ids, bool is_label) {
  text.ids.insert(text.ids.end(), ids.begin(), ids.end());
  text.is_label.resize(text.ids.size(), is_label);
}

TokenizedText joined_text(const Dataset::Sample& sample, const Tokenizer& tokenizer) {
  TokenizedText text;
  append(text, tokenizer.prefix_ids(), sample.segments.front().is_label);
  for (const Dataset::Segment& segment : sample.segments)
    append(text, tokenizer.encode_plain(segment.text), segment.is_label);
  const bool is_label = sample.segments.back().is_label;
  if (sample.ends.value_or(true)) append(text, tokenizer.suffix_ids(), is_label);
  if (!sample.ends.value_or(false)) return text;
  const std::optional<int32_t> end = tokenizer.eos_id();
  BLIPFT_USER_CHECK(end, sample.name, ": the end token is to stand behind this text, and the tokenizer's files name ",
                    "none: name an eos_token in tokenizer_config.json, or set data.append_eos to false");
  if (text.ids.empty() || text.ids.back() != *end) append(text, {*end}, is_label);
  return text;
}

TokenizedText whole_text(const Dataset::Sample& sample, const Tokenizer& tokenizer) {
  std::string all;
  TextPositions positions;                        // bytes: first and last byte of each segment that is a training target
  for (const Dataset::Segment& segment : sample.segments) {
    if (segment.is_label && !segment.text.empty())
      for (const size_t byte : {all.size(), all.size() + segment.text.size() - 1}) positions.bytes.push_back(byte);
    all += segment.text;
  }
  TokenizedText text;
  append(text, tokenizer.encode_with_positions(all, positions), false);
  for (size_t i = 0; i + 1 < positions.ids.size() && !text.ids.empty(); i += 2) {
    const size_t last = std::min(positions.ids[i + 1], text.ids.size() - 1);
    for (size_t id = positions.ids[i]; id <= last; ++id) text.is_label[id] = true;
  }
  return text;
}

/// Returns the text before the first segment that is a training target.
std::string instruction_of(const Dataset::Sample& sample) {
  std::string text;
  for (const Dataset::Segment& segment : sample.segments) {
    if (segment.is_label) break;
    text += segment.text;
  }
  return text;
}

/// Returns `ids` with the tokenizer's special tokens around them, at most `maximum` ids in total: the last of `ids` are
/// cut.
std::vector<int32_t> surrounded(std::vector<int32_t> ids, const Tokenizer& tokenizer, int64_t maximum, bool& cut) {
  const std::vector<int32_t> before = tokenizer.prefix_ids(), behind = tokenizer.suffix_ids();
  const int64_t room = std::max<int64_t>(0, maximum - static_cast<int64_t>(before.size() + behind.size()));
  if (static_cast<int64_t>(ids.size()) > room) {
    cut = true;
    ids.resize(static_cast<size_t>(room));
  }
  ids.insert(ids.begin(), before.begin(), before.end());
  ids.insert(ids.end(), behind.begin(), behind.end());
  return ids;
}

/// Returns the source for an encoder, and the decoder's text, which begins with `start`.
TokenizedText two_texts(const Dataset::Sample& sample, const Tokenizer& tokenizer, int64_t maximum, int32_t start) {
  BLIPFT_USER_CHECK(!sample.whole, sample.name, ": a conversation, and the model has an encoder for the prompt and a ",
                    "decoder for the answer; give records of \"prompt\" and \"completion\", or of \"instruction\" and ",
                    "\"output\"");
  std::vector<int32_t> source;
  for (size_t i = 0; i + 1 < sample.segments.size(); ++i)
    for (const int32_t id : tokenizer.encode_plain(sample.segments[i].text)) source.push_back(id);
  TokenizedText text;
  text.source = surrounded(std::move(source), tokenizer, maximum, text.cut);
  if (text.source.empty()) text.source.push_back(start);  // an encoder reads at least one row
  append(text, {start}, false);
  append(text, surrounded(tokenizer.encode_plain(sample.segments.back().text), tokenizer, maximum - 1, text.cut), true);
  return text;
}

/// Returns true if the tokenizer decodes two separately encoded texts with a space between them.
bool puts_spaces(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = tokenizer.encode_plain("a");
  for (const int32_t id : tokenizer.encode_plain("b")) ids.push_back(id);
  try {
    return tokenizer.decode(ids) == "a b";
  } catch (const UserError&) {             // the tokenizer cannot decode these ids
    return false;
  }
}

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

}  // namespace

const TokenizedText& TokenizedAnswers::drawn(uint64_t seed, int64_t pass) const {
  if (texts.size() == 1) return texts.front();
  if (pass < 0)
    return texts[static_cast<size_t>(std::max_element(weights.begin(), weights.end()) - weights.begin())];
  constexpr uint32_t purpose = 0x616e7377u;  // differs from the values of RandomOrder
  const Philox4 words = philox({static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32),
                                static_cast<uint32_t>(pass), purpose},
                               static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  double left = std::accumulate(weights.begin(), weights.end(), 0.0) * (static_cast<double>(words.x) * 0x1p-32);
  for (size_t i = 0; i + 1 < texts.size(); ++i) {
    if (left < weights[i]) return texts[i];
    left -= weights[i];
  }
  return texts.back();
}

int64_t TokenizedAnswers::max_tokens() const {
  int64_t maximum = 0;
  for (const TokenizedText& text : texts) maximum = std::max(maximum, text.size());
  return maximum;
}

const TokenizedText& TokenizedAnswers::with_max_pictures() const {
  return *std::max_element(texts.begin(), texts.end(), [](const TokenizedText& a, const TokenizedText& b) {
    return a.pictures.size() < b.pictures.size();
  });
}

int64_t TokenizedAnswers::tokens() const {
  int64_t sum = 0;
  for (const TokenizedText& text : texts) sum += text.rows() + static_cast<int64_t>(text.instruction.size());
  return sum;
}

namespace {

/// Cuts a text to `max_tokens` tokens that stand for no picture. A picture is kept whole or removed.
void cut_text(TokenizedText& text, int64_t max_tokens) {
  int64_t kept = max_tokens;
  for (const PictureSegment& picture : text.pictures)
    if (picture.first < kept) kept += picture.cells();
  if (text.size() <= kept) return;
  text.cut = true;
  text.ids.resize(static_cast<size_t>(kept));
  text.is_label.resize(text.ids.size());
  std::erase_if(text.pictures, [&](const PictureSegment& picture) { return picture.first >= kept; });
}

/// `sizes`: of the sample's pictures.
TokenizedText tokenize_sized(Dataset::Sample sample, std::vector<PictureSegment> sizes, const Tokenizer& tokenizer,
                             int64_t max_tokens, int64_t vocabulary, const InstructionReader& instructions, int32_t decoder_start,
                             const PictureReader* pictures) {
  BLIPFT_CHECK(!sample.segments.empty(), sample.name, ": a sample without text");
  if (pictures) pictures->expand(sample.segments, sizes, sample.name);
  TokenizedText text = decoder_start >= 0 ? two_texts(sample, tokenizer, max_tokens, decoder_start)
                       : sample.whole     ? whole_text(sample, tokenizer)
                                          : joined_text(sample, tokenizer);
  if (pictures) pictures->locate(text, std::move(sizes), sample.name);
  cut_text(text, max_tokens);
  if (pictures) pictures->check_rows(text, sample.name);
  std::vector<int32_t> ids = text.source;
  ids.insert(ids.end(), text.ids.begin(), text.ids.end());
  for (const int32_t id : ids)
    BLIPFT_USER_CHECK(id >= 0 && id < vocabulary, sample.name, ": its text has a token with id ", id,
                      ", the model's vocabulary has ", vocabulary,
                      " ids (vocab_size in config.json); use the tokenizer that belongs to the model");
  if (instructions.tokenizer) text.instruction = instructions.ids(instruction_of(sample), sample.name);
  return text;
}

Dataset::Sample without_picture(const Dataset::Sample& sample) {
  return {sample.name, sample.segments, std::nullopt, sample.whole, sample.ends};
}

}  // namespace

TokenizedAnswers tokenize_answers(const Dataset::Sample& sample, const Tokenizer& tokenizer, int64_t max_tokens,
                                  int64_t vocabulary, const InstructionReader& instructions, int32_t decoder_start,
                                  const PictureReader* pictures) {
  if (sample.answers.empty())
    return tokenize(sample, tokenizer, max_tokens, vocabulary, instructions, decoder_start, pictures);
  const std::vector<PictureSegment> sizes = pictures ? pictures->sizes(sample.pictures, sample.name) : std::vector<PictureSegment>();
  const std::string& prompt = sample.segments.front().text;
  const bool apart = decoder_start >= 0 || sample.segments.size() == 1 || prompt.empty() || is_space(prompt.back()) ||
                     puts_spaces(tokenizer);
  TokenizedAnswers all;
  all.texts.clear();
  all.weights.clear();
  all.number = sample.number;
  Dataset::Sample one = without_picture(sample);
  for (const Dataset::Answer& answer : sample.answers) {
    const bool spaced = apart || answer.text.empty() || is_space(answer.text.front());
    if (answer.segments.empty()) one.segments.back().text = (spaced ? "" : " ") + answer.text;
    else one.segments = answer.segments;
    all.texts.push_back(tokenize_sized(one, sizes, tokenizer, max_tokens, vocabulary, instructions, decoder_start, pictures));
    all.weights.push_back(answer.weight);
  }
  return all;
}

TokenizedText tokenize(const Dataset::Sample& sample, const Tokenizer& tokenizer, int64_t max_tokens,
                       int64_t vocabulary, const InstructionReader& instructions, int32_t decoder_start,
                       const PictureReader* pictures) {
  return tokenize_sized(without_picture(sample), pictures ? pictures->sizes(sample.pictures, sample.name) : std::vector<PictureSegment>(), tokenizer,
                        max_tokens, vocabulary, instructions, decoder_start, pictures);
}

std::vector<int32_t> InstructionReader::ids(const std::string& text, const std::string& name) const {
  if (!tokenizer) return {};
  std::vector<int32_t> result = tokenizer->prefix_ids(), behind = tokenizer->suffix_ids();
  const std::vector<int32_t> plain = tokenizer->encode_plain(text);
  const auto room = std::max<int64_t>(0, max_tokens - static_cast<int64_t>(result.size() + behind.size()));
  result.insert(result.end(), plain.begin(), plain.begin() + std::min(room, static_cast<int64_t>(plain.size())));
  result.insert(result.end(), behind.begin(), behind.end());
  result.resize(static_cast<size_t>(std::min(max_tokens, static_cast<int64_t>(result.size()))));
  for (const int32_t id : result)
    BLIPFT_USER_CHECK(id >= 0 && id < vocabulary, name, ": its instruction has a token with id ", id,
                      ", the Q-Former's vocabulary has ", vocabulary,
                      " ids (qformer_config.vocab_size in config.json); use the tokenizer that belongs to the model");
  return result;
}

InstructionReader open_instruction_reader(const std::string& model_directory, const StreamInputs& inputs,
                                          int64_t max_tokens) {
  if (!inputs) return {};
  return {load_tokenizer(concat(model_directory, "/", inputs.tokenizer), {}), inputs.vocabulary,
          std::min(max_tokens, inputs.max_tokens)};
}

void check_text_length(const LoadingSettings& loading, const ModelInputs& inputs) {
  BLIPFT_USER_CHECK(loading.data.max_text_tokens <= inputs.text.max_tokens, location_of(loading, "data.max_text_tokens"),
                    ": data.max_text_tokens: found ", loading.data.max_text_tokens,
                    loading.given("data.max_text_tokens") ? "" : " (the default)", ", expected at most ",
                    inputs.text.max_tokens, ": the model has ", inputs.text.first_rows + inputs.text.max_tokens,
                    " positions (config.json: max_position_embeddings)",
                    inputs.text.first_rows > 0 ? concat(", of which ", inputs.text.first_rows, " come before the text") : "");
}

void check_text_inputs(const LoadingSettings& loading, const std::string& model_folder, const ModelInputs& inputs,
                       const Tokenizer& tokenizer) {
  check_text_length(loading, inputs);
  const int32_t padding = tokenizer.pad_id();
  for (const std::vector<int32_t>& ids : {tokenizer.prefix_ids(), tokenizer.suffix_ids()})
    for (const int32_t id : ids)
      BLIPFT_USER_CHECK(id >= 0 && id < inputs.text.vocabulary, model_folder,
                        ": the tokenizer's files put a token with ",
                        "id ", id, " around every text (post_processor, or bos_token and eos_token), the model's ",
                        "vocabulary has ", inputs.text.vocabulary, " ids (vocab_size in config.json); use the tokenizer ",
                        "that belongs to the model");
  BLIPFT_USER_CHECK(!loading.steps.loss_on_padding || (padding >= 0 && padding < inputs.text.vocabulary),
                    location_of(loading, "train.loss_on_padding"), ": train.loss_on_padding: the tokenizer's padding ",
                    "token ", padding < 0 ? "is missing" : concat("has id ", padding), ", the model's vocabulary has ",
                    inputs.text.vocabulary, " ids (vocab_size in config.json); set it to false, or use the tokenizer that ",
                    "belongs to the model");
}

int32_t padding_id(const Tokenizer& tokenizer, int64_t vocabulary) {
  for (const int32_t id : {tokenizer.pad_id(), tokenizer.eos_id().value_or(-1)})
    if (id >= 0 && id < vocabulary) return id;
  return 0;
}

}  // namespace blipft
