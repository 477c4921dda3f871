// Generation at validations; see validation_answers.h.
#include "generate/validation_answers.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/placement.h"
#include "evaluate/run_metrics.h"
#include "generate/answers/answer_set.h"
#include "generate/records.h"
#include "io/json.h"

namespace blipft {

namespace {

using nlohmann::ordered_json;

// Gives all ranks the scores of rank 0, without those of single samples.
void share_scores(const World& world, ValidationScores& found) {
  std::string names;
  std::vector<double> values;
  for (const Score& one : found.scores) names += one.metric + "\n", values.push_back(one.value);
  std::istringstream lines(world.from_rank(0, names));
  values = records_of_first_rank(world, values);
  found.samples = records_of_first_rank(world, std::vector<int64_t>{found.samples}).at(0);
  if (world.rank() == 0) return;
  found.scores.clear();
  std::string metric;
  for (size_t i = 0; std::getline(lines, metric); ++i) found.scores.push_back({metric, values.at(i), {}, {}});
}

}  // namespace

ValidationAnswers::ValidationAnswers(const Parts& parts)
    : parts_(parts), metrics_(metrics_of_validations(*parts.config, parts.prompts->set.inputs().has_picture())) {
  const PromptSet& set = parts_.prompts->set;
  const AnswerText answers(*parts_.tokenizer, parts_.prompts->settings);
  parts_.world->together([&] {
    std::vector<ScoredText> right;         // with the first reference as the answer
    for (const PromptedSample& prompt : set.prompts())
      right.push_back(scored_text(prompt, static_cast<int64_t>(right.size()), "",
                                  answers.clean(prompt.references.empty() ? "" : prompt.references.front()), answers));
    int64_t samples = 0;
    (void)scores_of(right, samples);
  });
}

std::vector<Score> ValidationAnswers::scores_of(const std::vector<ScoredText>& texts, int64_t& samples) const {
  Evaluation evaluation;
  for (const ScoredText& text : texts)
    if (!text.references.empty()) evaluation.add(text);
  samples = evaluation.size();
  BLIPFT_USER_CHECK(samples > 0, parts_.prompts->set.path(), ": none of the samples that evaluate.samples takes has a reference "
                    "text, and ", metrics_.front(), " compares with one; choose samples with answers, or set it to 0");
  return evaluation.scores(metrics_);
}

// This rank's texts, a line of JSON each.
std::string ValidationAnswers::generate() {
  ValidationPrompts& prompts = *parts_.prompts;
  const AnswerText answers(*parts_.tokenizer, prompts.settings);
  const World& world = *parts_.world;
  std::string lines;
  GeneratorCalls calls;
  calls.next = prompt_requests(prompts.set, prompts.settings, world.rank(), world.size(),
                               std::max(parts_.config->data.num_workers, cores_of_a_rank(world)));
  if (!prompts.settings.stop.empty()) calls.stops = [&](std::span<const int32_t> ids) { return answers.stops(ids); };
  calls.done = [&](const TextResult& result) {
    const GeneratedText& best = result.texts.at(0);
    const ordered_json line{{"sample", result.number}, {"text", answers.of(best.ids)}, {"tokens", best.ids.size()}};
    lines += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  };
  calls.any = [&](bool mine) {
    parts_.alive();
    return parts_.all_take_part ? world.any(mine ? 1 : 0) != 0 : mine;
  };
  Generator(*parts_.program, prompts.settings.returned, parts_.synchronous).run(calls);
  return lines;
}

std::vector<ScoredText> ValidationAnswers::texts_of(const std::vector<std::string>& lines, std::vector<int64_t>& tokens) const {
  std::map<int64_t, ordered_json> sorted;
  for (const std::string& of_rank : lines) {
    std::istringstream text(of_rank);
    for (std::string line; std::getline(text, line);) {
      ordered_json one = io::parse_json<ordered_json>(line, "generated texts");
      sorted.emplace(one.at("sample").get<int64_t>(), std::move(one));
    }
  }
  std::vector<ScoredText> texts;
  const AnswerText answers(*parts_.tokenizer, parts_.prompts->settings);
  for (const auto& [number, line] : sorted) {
    const PromptedSample& prompt = parts_.prompts->set.prompts()[static_cast<size_t>(number)];
    texts.push_back(
        scored_text(prompt, number, parts_.tokenizer->decode(prompt.ids), line.at("text").get<std::string>(), answers));
    tokens.push_back(line.at("tokens").get<int64_t>());
  }
  return texts;
}

ValidationScores ValidationAnswers::evaluate() {
  const World& world = *parts_.world;
  const std::vector<std::string> lines = world.gather_texts(generate());
  ValidationScores found;
  world.together([&] {
    if (world.rank() > 0) return;
    found.texts = texts_of(lines, found.tokens);
    found.scores = scores_of(found.texts, found.samples);
  });
  share_scores(world, found);
  left_out_ = parts_.prompts->set.left_out_of_all(world);
  return found;
}

}  // namespace blipft
