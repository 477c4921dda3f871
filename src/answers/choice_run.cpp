// Questions with choices; see choice_run.h. Texts and their tokens are lm-eval's: a blank stands between query and choice,
// blanks at the query's end go to the choice, and a choice's tokens are those that the whole text has behind the query's.
#include "answers/choice_run.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "answers/answer_files.h"
#include "blipft/evaluate.h"
#include "data/sample_text.h"
#include "generate/generation.h"
#include "io/file.h"
#include "io/json.h"

namespace blipft {

namespace {

using nlohmann::json;

constexpr int64_t kMostBytes = int64_t{1} << 30;

struct Question {
  std::string place, query;                ///< place: file and record
  std::vector<std::string> choices;
  int64_t gold = 0;
};

Question question_of(const json& record, const std::string& place) {
  BLIPFT_USER_CHECK(record.is_object(), place, ": found ", io::brief(record), ", expected an object");
  const auto at = [&](std::initializer_list<const char*> names, const char* what) -> const json& {
    for (const char* name : names)
      if (const auto found = record.find(name); found != record.end()) return *found;
    throw UserError(concat(place, ": no key \"", *names.begin(), "\", expected ", what));
  };
  Question question{place, "", {}, 0};
  const json& query = at({"query", "question"}, "the text before the choices");
  BLIPFT_USER_CHECK(query.is_string(), place, ": query: found ", io::brief(query), ", expected a text");
  question.query = query.get<std::string>();
  const json& choices = at({"choices"}, "a list of texts to choose from");
  BLIPFT_USER_CHECK(choices.is_array() && choices.size() >= 2, place, ": choices: found ", io::brief(choices),
                    ", expected a list of two texts or more");
  for (const json& choice : choices) {
    BLIPFT_USER_CHECK(choice.is_string() && !choice.get_ref<const std::string&>().empty(), place, ": choices: found ",
                      io::brief(choice), ", expected a text");
    question.choices.push_back(choice.get<std::string>());
  }
  const json& gold = at({"gold", "label", "answer"}, "the index of the right choice, from 0");
  BLIPFT_USER_CHECK(gold.is_number_integer() && gold.get<int64_t>() >= 0 &&
                        gold.get<int64_t>() < static_cast<int64_t>(choices.size()),
                    place, ": gold: found ", io::brief(gold), ", expected the index of the right choice, 0 to ",
                    choices.size() - 1);
  question.gold = gold.get<int64_t>();
  return question;
}

// A JSON list, or a record a line.
std::vector<Question> read_questions(const std::string& file, int64_t most) {
  const std::string text = io::read_whole_file(file, kMostBytes);
  std::vector<Question> questions;
  const auto wanted = [&] { return most == 0 || static_cast<int64_t>(questions.size()) < most; };
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '[') {
    const json list = io::parse_json(text, file);
    for (size_t i = 0; i < list.size() && wanted(); ++i) questions.push_back(question_of(list[i], concat(file, ": record ", i + 1)));
  } else {
    std::istringstream lines(text);
    int64_t number = 0;
    for (std::string line; std::getline(lines, line) && wanted();) {
      const std::string place = concat(file, ":", ++number);
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      questions.push_back(question_of(io::parse_json(line, place), place));
    }
  }
  BLIPFT_USER_CHECK(!questions.empty(), file, ": there is no question; expected records with query, choices and gold");
  return questions;
}

// The text of a choice, its tokens to be predicted. Cut from the left to what the model has positions for.
TokenizedText text_of(const Question& question, const std::string& choice, const Generation& generation) {
  const Tokenizer& tokenizer = generation.tokenizer();
  std::string query = question.query, answer = " " + choice;
  while (!query.empty() && query.back() == ' ') query.pop_back(), answer.insert(0, 1, ' ');
  TokenizedText text;
  if (const ModelInputs& inputs = generation.inputs(); inputs.has_source()) {  // lm-eval: the query is the encoder's text
    const Dataset::Sample sample{.name = question.place, .segments = {{query, false}, {answer, true}}};
    text = tokenize(sample, tokenizer, generation.most_ids(), inputs.vocabulary, {}, inputs.decoder_start);
    const size_t behind = std::min(tokenizer.suffix_ids().size(), text.ids.size() - 2);
    text.ids.resize(text.ids.size() - behind);
    text.learnt.resize(text.ids.size());
    return text;
  }
  text.ids = tokenizer.encode_plain(query + answer);
  size_t context = query.empty() ? 0 : tokenizer.encode_plain(query).size();
  // lm-eval puts nothing before a text, but before one without a query, and, for Gemma, what the tokenizer has.
  std::vector<int32_t> prefix;
  if (generation.puts_prefix()) prefix = tokenizer.prefix_ids();
  if (prefix.empty() && context == 0) {
    const auto begin = tokenizer.bos_id() ? tokenizer.bos_id() : tokenizer.eos_id();
    BLIPFT_USER_CHECK(begin, question.place, ": query: is empty, and the tokenizer has no token to begin a text with");
    prefix = {*begin};
  }
  text.ids.insert(text.ids.begin(), prefix.begin(), prefix.end());
  context = std::min(context + prefix.size(), text.ids.size() - 1);
  text.learnt.assign(text.ids.size(), 0);
  std::fill(text.learnt.begin() + static_cast<std::ptrdiff_t>(context), text.learnt.end(), 1);
  const auto most = static_cast<size_t>(generation.most_ids());
  if (text.ids.size() > most) {
    const auto cut = static_cast<std::ptrdiff_t>(text.ids.size() - most);
    text.ids.erase(text.ids.begin(), text.ids.begin() + cut);
    text.learnt.erase(text.learnt.begin(), text.learnt.begin() + cut);
  }
  for (const int32_t id : text.ids)
    BLIPFT_USER_CHECK(id < generation.inputs().vocabulary, question.place, ": token id ", id, " is not below the model's ",
                      generation.inputs().vocabulary, " tokens");
  return text;
}

// Likelihoods of texts, in groups that are computed at once.
std::vector<double> likelihoods_of(Generation& generation, const std::vector<TokenizedText>& texts) {
  std::vector<double> likelihoods;
  for (size_t next = 0;;) {
    std::vector<BatchSample> group;
    int64_t ids = 0;
    for (; next < texts.size() && generation.fits(static_cast<int64_t>(group.size()) + 1, ids + texts[next].size()); ++next) {
      group.push_back({texts[next], static_cast<int64_t>(next)});
      ids += texts[next].size();
    }
    if (!generation.any(!group.empty())) return likelihoods;
    for (const TextLikelihood& one : generation.score(group, {})) likelihoods.push_back(one.log_likelihood);
  }
}

std::string line_of(const Question& question, int64_t index, const std::vector<double>& likelihoods) {
  const auto chosen = std::max_element(likelihoods.begin(), likelihoods.end()) - likelihoods.begin();
  nlohmann::ordered_json line{{"sample", index}, {"name", question.place}, {"query", question.query},
                              {"choices", question.choices}, {"log_likelihoods", likelihoods}, {"chosen", chosen},
                              {"gold", question.gold}};
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

bool asks_for_choices(const Config& config) {
  const std::string place = place_of(config, "evaluate.metrics") + ": evaluate.metrics";
  const auto of_choices = [&](const std::string& name) { return find_metric(name, place).input == MetricInput::choices; };
  const std::vector<std::string>& names = config.evaluate.metrics;
  const auto count = std::count_if(names.begin(), names.end(), of_choices);
  BLIPFT_USER_CHECK(count == 0 || count == static_cast<std::ptrdiff_t>(names.size()), place,
                    ": has metrics of choices and others, and a set has questions or texts; give one kind");
  return count > 0;
}

void answer_choices(const Config& config, const World& world) {
  Generation generation(config, world);
  std::vector<Question> questions;
  std::vector<TokenizedText> texts;        // of this rank's questions, one a choice
  int64_t longest = 1, longest_source = 1;
  world.together([&] {
    BLIPFT_USER_CHECK(!generation.inputs().has_picture(), generation.config().model.path,
                      ": reads pictures, and multiple choice is of texts; choose a model of text");
    const std::string file = config.generate.path.empty() ? config.data.path : config.generate.path;
    questions = read_questions(file, config.generate.samples);
    for (size_t i = 0; i < questions.size(); ++i)
      for (const std::string& choice : questions[i].choices) {
        TokenizedText text = text_of(questions[i], choice, generation);
        longest = std::max(longest, text.size());
        longest_source = std::max(longest_source, text.source_size());
        if (static_cast<int64_t>(i) % world.size() == world.rank()) texts.push_back(std::move(text));
      }
  });
  AnswerFiles files(config, world, "choices");
  generation.load({longest_source, std::max<int64_t>(1, static_cast<int64_t>(texts.size())), longest});
  if (world.rank() == 0) {
    std::printf("weights    %s\nquestions  %zu\n", generation.text().c_str(), questions.size());
    std::fflush(stdout);
  }
  world.together([&] {
    const std::vector<double> all = likelihoods_of(generation, texts);
    size_t at = 0;
    for (auto i = static_cast<size_t>(world.rank()); i < questions.size(); i += static_cast<size_t>(world.size())) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(at);
      at += questions[i].choices.size();
      files.add(line_of(questions[i], static_cast<int64_t>(i),
                        {first, first + static_cast<std::ptrdiff_t>(questions[i].choices.size())}));
    }
  });
  const std::vector<std::string> lines = files.all_lines();
  world.together([&] {
    if (world.rank() != 0) return;
    Evaluation evaluation;
    for (const std::string& line : lines) {
      const json one = io::parse_json(line, files.folder() + "/choices.jsonl");
      const auto index = one.at("sample").get<int64_t>();
      const Question& question = questions[static_cast<size_t>(index)];
      evaluation.add(ScoredChoices{index, "", question.choices, one.at("log_likelihoods").get<std::vector<double>>(), question.gold});
    }
    if (world.size() > 1) files.write_sorted("choices.jsonl", lines);
    const std::vector<Score> scores = evaluation.scores(config.evaluate.metrics);
    print_scores(scores);
    files.write("scores.json", scores_json({{"choices", scores, evaluation.size()}}));
    std::printf("choices    %s/choices.jsonl\n", files.folder().c_str());
  });
}

}  // namespace blipft
