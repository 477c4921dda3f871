// Multiple choice; see choice_run.h.
#include "generate/answers/choice_run.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "agreement/rank_guard.h"
#include "agreement/same_run.h"
#include "blipft/evaluate.h"
#include "config/config_facts.h"
#include "engine/decode/prompt_set.h"
#include "generate/answers/answer_files.h"
#include "generate/answers/choice_set.h"
#include "generate/generation.h"
#include "generate/records.h"
#include "generate/weight_source.h"

namespace blipft {

namespace {

// Returns the likelihoods of texts, computed in groups.
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
  nlohmann::ordered_json line{{"sample", index}, {"name", question.location}, {"query", question.query},
                              {"choices", question.choices}, {"log_likelihoods", likelihoods}, {"chosen", chosen},
                              {"gold", question.gold}};
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void answer_choices(const GenerationSource& source, const World& world, Watchdog& watchdog) {
  const Config& requested = source.config;
  Generation generation(source, world);
  std::unique_ptr<ChoiceSet> set;
  std::vector<TokenizedText> texts;        // this rank's questions, one text per choice
  Config config;
  Fact data;
  world.run_agreeing_on_errors([&] {
    config = with_held_out_of_run(requested, generation.model().source);
    set = std::make_unique<ChoiceSet>(config, generation.model());
    const PromptSource samples = prompt_source(config, true);
    data = whole_file_fact(concat("the data at ", samples.key), samples.path);
    texts = set->texts_of_rank(world.rank(), world.size());
    if (world.rank() == 0) print_samples(config, generation.model().source);
  });
  const std::vector<Question>& questions = set->questions();
  check_same_config(config, world);
  compare_facts(world, {data}, "give all machines the same data");
  AnswerFiles files(requested, world);
  generation.load(set->work(world.size()));
  const GroupsWatch groups_watch(watchdog, generation.groups());
  if (world.rank() == 0) {
    std::printf("weights    %s\nquestions  %zu of %s\n", generation.text().c_str(), questions.size(), set->from().c_str());
    if (const size_t count = set->left_out().size(); count > 0)
      std::printf("left out   %zu records, the first: %s\n", count, set->left_out().front().c_str());
    std::fflush(stdout);
  }
  const std::vector<double> mine = likelihoods_of(generation, texts);  // uses collectives if the ranks share weights
  world.activity().phase(Activity::Phase::results);
  const std::vector<std::string> of_ranks = world.gather_texts(bytes_of_records(mine));
  world.run_agreeing_on_errors([&] {
    if (world.rank() != 0) return;
    std::vector<std::vector<double>> likelihoods(of_ranks.size());
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) append_records(of_ranks[rank], likelihoods[rank]);
    std::vector<size_t> next(of_ranks.size());
    Evaluation evaluation;
    std::string lines;
    for (size_t i = 0; i < questions.size(); ++i) {
      const size_t rank = i % of_ranks.size(), count = questions[i].choices.size();
      const auto first = likelihoods[rank].begin() + static_cast<std::ptrdiff_t>(std::exchange(next[rank], next[rank] + count));
      const std::vector<double> one(first, first + static_cast<std::ptrdiff_t>(count));
      lines += line_of(questions[i], static_cast<int64_t>(i), one) + "\n";
      evaluation.add(ScoredChoices{static_cast<int64_t>(i), "", questions[i].choices, one, questions[i].gold});
    }
    const std::string path = files.write("choices.jsonl", lines);
    const std::vector<Score> scores = evaluation.scores(requested.evaluate.metrics);
    print_scores(scores);
    files.write("scores.json", scores_json({{"choices", scores, evaluation.size()}}));
    std::printf("choices    %s\n", path.c_str());
  });
}

}  // namespace blipft
