// Questions with choices; see choice_set.h. Texts and tokens are those of lm-eval: a blank separates query and choice,
// blanks at the query's end belong to the choice, and a choice's tokens are those of the whole text after the query's.
#include "generate/answers/choice_set.h"

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>

#include "blipft/error.h"
#include "blipft/evaluate.h"
#include "engine/decode/prompt_set.h"
#include "io/file.h"
#include "io/json.h"
#include "loading/sample_text.h"
#include "loading/step_order.h"

namespace blipft {

namespace {

using nlohmann::json;

constexpr int64_t kMaxBytes = int64_t{1} << 30;

Question question_of(const json& record, const std::string& location) {
  BLIPFT_USER_CHECK(record.is_object(), location, ": found ", io::brief(record), ", expected an object");
  const auto at = [&](std::initializer_list<const char*> names, const char* what) -> const json& {
    for (const char* name : names)
      if (const auto found = record.find(name); found != record.end()) return *found;
    throw UserError(concat(location, ": no key \"", *names.begin(), "\", expected ", what));
  };
  Question question{location, "", {}, 0};
  const json& query = at({"query", "question"}, "the text before the choices");
  BLIPFT_USER_CHECK(query.is_string(), location, ": query: found ", io::brief(query), ", expected a text");
  question.query = query.get<std::string>();
  const json& choices = at({"choices"}, "a list of texts to choose from");
  BLIPFT_USER_CHECK(choices.is_array() && choices.size() >= 2, location, ": choices: found ", io::brief(choices),
                    ", expected a list of two texts or more");
  for (const json& choice : choices) {
    BLIPFT_USER_CHECK(choice.is_string() && !choice.get_ref<const std::string&>().empty(), location, ": choices: found ",
                      io::brief(choice), ", expected a text");
    question.choices.push_back(choice.get<std::string>());
  }
  const json& gold = at({"gold", "label", "answer"}, "the index of the right choice, from 0");
  BLIPFT_USER_CHECK(gold.is_number_integer() && gold.get<int64_t>() >= 0 &&
                        gold.get<int64_t>() < static_cast<int64_t>(choices.size()),
                    location, ": gold: found ", io::brief(gold), ", expected the index of the right choice, 0 to ",
                    choices.size() - 1);
  question.gold = gold.get<int64_t>();
  return question;
}

// Reads the first `maximum` questions (0: all) from a JSON list, or from a file with one record per line. An invalid
// record gets an error text.
std::vector<Question> read_questions(const std::string& file, int64_t maximum) {
  const std::string text = io::read_whole_file(file, kMaxBytes);
  std::vector<Question> questions;
  const auto wanted = [&] { return maximum == 0 || static_cast<int64_t>(questions.size()) < maximum; };
  const auto add = [&](const std::string& location, const std::function<json()>& record) {
    try {
      questions.push_back(question_of(record(), location));
    } catch (const UserError& error) {
      questions.push_back({.location = location, .query = "", .choices = {}, .error = error.what()});
    }
  };
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '[') {
    const json list = io::parse_json(text, file);
    for (size_t i = 0; i < list.size() && wanted(); ++i) add(concat(file, ": record ", i + 1), [&] { return list[i]; });
  } else {
    std::istringstream lines(text);
    int64_t number = 0;
    for (std::string line; std::getline(lines, line) && wanted();) {
      const std::string location = concat(file, ":", ++number);
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      add(location, [&] { return io::parse_json(line, location); });
    }
  }
  BLIPFT_USER_CHECK(!questions.empty(), file, ": there is no question; expected records with query, choices and gold");
  return questions;
}

// Returns the validation split of a training on data.path. Records that training cannot read are split by questions.
Split training_split(const Config& config, const std::vector<Question>& all, const Tokenizer& tokenizer) {
  try {
    const auto dataset = open_dataset(config.data.path, config.data.format, text_settings(config.data, config, config.model.path, tokenizer));
    if (dataset->size() == static_cast<int64_t>(all.size())) return split_samples(config, *dataset);
  } catch (const UserError&) {             // the records are only questions
  }
  std::vector<int64_t> groups;
  std::map<std::string, int64_t> numbers;
  for (const Question& question : all)
    groups.push_back(numbers.try_emplace(question.query, static_cast<int64_t>(numbers.size())).first->second);
  return split_samples(config, groups);
}

// Returns the first config.generate.samples questions of those that a training on `all` holds out for validation.
std::vector<Question> held_out(const Config& config, std::vector<Question> all, const Tokenizer& tokenizer) {
  std::vector<Question> questions;
  for (const int64_t i : training_split(config, all, tokenizer).validation)
    questions.push_back(std::move(all[static_cast<size_t>(i)]));
  const auto maximum = static_cast<size_t>(config.generate.samples);
  if (maximum > 0 && questions.size() > maximum) questions.resize(maximum);
  return questions;
}

// Returns the text of a choice, whose tokens are labels. It is cut from the left to the model's positions.
TokenizedText text_of(const Question& question, const std::string& choice, const GenerationModel& model) {
  const Tokenizer& tokenizer = *model.tokenizer;
  std::string query = question.query, answer = " " + choice;
  while (!query.empty() && query.back() == ' ') query.pop_back(), answer.insert(0, 1, ' ');
  TokenizedText text;
  if (const ModelInputs& inputs = model.inputs; inputs.has_source()) {  // lm-eval: the query is the encoder's text
    const Dataset::Sample sample{.name = question.location, .segments = {{query, false}, {answer, true}}};
    text = tokenize(sample, tokenizer, model.max_ids(), inputs.text.vocabulary, {}, inputs.decoder_start);
    const size_t behind = std::min(tokenizer.suffix_ids().size(), text.ids.size() - 2);
    text.ids.resize(text.ids.size() - behind);
    text.is_label.resize(text.ids.size());
    return text;
  }
  text.ids = tokenizer.encode_plain(query + answer);
  size_t context = query.empty() ? 0 : tokenizer.encode_plain(query).size();
  // As in training, a text begins with the tokenizer's prefix_ids() (BOS of LLaMA); lm-eval does so since its pull
  // request 3347. A text without a query begins with a token in any case.
  std::vector<int32_t> prefix = tokenizer.prefix_ids();
  if (prefix.empty() && context == 0) {
    const auto begin = tokenizer.bos_id() ? tokenizer.bos_id() : tokenizer.eos_id();
    BLIPFT_USER_CHECK(begin, question.location, ": query: is empty, and the tokenizer has no token to begin a text with");
    prefix = {*begin};
  }
  text.ids.insert(text.ids.begin(), prefix.begin(), prefix.end());
  context = std::min(context + prefix.size(), text.ids.size() - 1);
  text.is_label.assign(text.ids.size(), 0);
  std::fill(text.is_label.begin() + static_cast<std::ptrdiff_t>(context), text.is_label.end(), 1);
  const auto maximum = static_cast<size_t>(model.max_ids());
  if (text.ids.size() > maximum) {
    const auto cut = static_cast<std::ptrdiff_t>(text.ids.size() - maximum);
    text.ids.erase(text.ids.begin(), text.ids.begin() + cut);
    text.is_label.erase(text.is_label.begin(), text.is_label.begin() + cut);
  }
  for (const int32_t id : text.ids)
    BLIPFT_USER_CHECK(id < model.inputs.text.vocabulary, question.location, ": token id ", id, " is not below the model's ",
                      model.inputs.text.vocabulary, " tokens");
  return text;
}

}  // namespace

bool uses_choices(const Config& config) {
  const std::string location = location_of(config, "evaluate.metrics") + ": evaluate.metrics";
  const auto of_choices = [&](const std::string& name) { return find_metric(name, location).input == MetricInput::choices; };
  const std::vector<std::string>& names = config.evaluate.metrics;
  const auto count = std::count_if(names.begin(), names.end(), of_choices);
  BLIPFT_USER_CHECK(count == 0 || count == static_cast<std::ptrdiff_t>(names.size()), location,
                    ": has metrics of choices and others, and a set has questions or texts; give one kind");
  return count > 0;
}

ChoiceSet::ChoiceSet(const Config& config, const GenerationModel& model) {
  BLIPFT_USER_CHECK(!model.inputs.has_picture(), model.config().model.path,
                    ": reads pictures, and multiple choice is of texts; choose a model of text");
  const PromptSource source = prompt_source(config, true);
  source.check(config);
  std::vector<Question> found = source.held_out ? held_out(config, read_questions(source.path, 0), *model.tokenizer)
                                                : read_questions(source.path, config.generate.samples);
  for (Question& question : found) {
    try {
      add(std::move(question), model);
    } catch (const UserError& error) {
      BLIPFT_USER_CHECK(config.data.on_bad_sample == FaultAction::skip, error.what(),
                        "; data.on_bad_sample=skip leaves such samples out");
      left_out_.push_back(error.what());
    }
  }
  BLIPFT_USER_CHECK(!questions_.empty(), source.path, ": there is no question to answer",
                    left_out_.empty() ? "" : "; the first record that was left out: " + left_out_.front());
  from_ = source.text(static_cast<int64_t>(questions_.size()));
}

void ChoiceSet::add(Question question, const GenerationModel& model) {
  if (!question.error.empty()) throw UserError(question.error);
  std::vector<TokenizedText> texts;
  for (const std::string& choice : question.choices) texts.push_back(text_of(question, choice, model));
  for (const TokenizedText& text : texts) {
    longest_ = std::max(longest_, text.size());
    longest_source_ = std::max(longest_source_, text.source_size());
  }
  texts_.push_back(std::move(texts));
  questions_.push_back(std::move(question));
}

std::vector<TokenizedText> ChoiceSet::texts_of_rank(int64_t rank, int64_t ranks) const {
  std::vector<TokenizedText> texts;
  for (auto i = static_cast<size_t>(rank); i < texts_.size(); i += static_cast<size_t>(ranks))
    texts.insert(texts.end(), texts_[i].begin(), texts_[i].end());
  return texts;
}

TextsToGenerate ChoiceSet::work(int64_t ranks) const {
  std::vector<int64_t> of_rank(static_cast<size_t>(ranks));
  for (size_t i = 0; i < texts_.size(); ++i) of_rank[i % of_rank.size()] += static_cast<int64_t>(texts_[i].size());
  return {longest_source_, std::max<int64_t>(1, *std::max_element(of_rank.begin(), of_rank.end())), longest_};
}

}  // namespace blipft
