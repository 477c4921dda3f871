// Generation at validations; see validation_answers.h.
#include "generate/validation_answers.h"

#include <algorithm>
#include <sstream>

#include "engine/placement.h"
#include "generate/run_metrics.h"
#include "generate/answers/prompt_answers.h"
#include "generate/records.h"

namespace blipft {

namespace {

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
    : parts_(parts), metrics_(metrics_of_validations(*parts.config, parts.prompts->set.about_pictures())) {
  parts_.prompts->settings.ignore_before = parts_.config->evaluate.ignore_before;
  const PromptSet& set = parts_.prompts->set;
  const AnswerText answers(*parts_.tokenizer, parts_.prompts->settings);
  parts_.world->run_agreeing_on_errors([&] {
    std::vector<ScoredText> right;         // the first reference as the answer
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

ValidationScores ValidationAnswers::evaluate() {
  ValidationPrompts& prompts = *parts_.prompts;
  const World& world = *parts_.world;
  PromptAnswers answers(prompts.set, *parts_.tokenizer, prompts.settings, world,
                        std::max(parts_.config->data.num_workers, cores_of_a_rank(world)));
  GeneratorCalls calls = answers.calls();
  calls.any = [&](bool mine) {
    parts_.alive();
    return parts_.all_take_part ? world.any(mine ? 1 : 0) != 0 : mine;
  };
  Generator(*parts_.program, prompts.settings.returned, parts_.synchronous).run(calls);
  const std::vector<TextResult> results = answers.gather();
  ValidationScores found;
  world.run_agreeing_on_errors([&] {
    if (world.rank() > 0) return;
    for (const TextResult& result : results) {
      found.texts.push_back(answers.scored(result));
      found.tokens.push_back(static_cast<int64_t>(result.texts.at(0).ids.size()));
    }
    found.scores = scores_of(found.texts, found.samples);
  });
  share_scores(world, found);
  left_out_ = parts_.prompts->set.left_out_of_all(world);
  return found;
}

}  // namespace blipft
