// --generate and --evaluate; see answers.h.
#include "generate/answers.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "agreement/rank_guard.h"
#include "blipft/evaluate.h"
#include "checkpoint/content_check.h"
#include "config/config_facts.h"
#include "engine/placement.h"
#include "generate/run_metrics.h"
#include "generate/answers/answer_files.h"
#include "generate/answers/choice_run.h"
#include "generate/answers/choice_set.h"
#include "generate/answers/prompt_answers.h"
#include "generate/answers/thumbnails.h"
#include "generate/generation.h"
#include "generate/records.h"
#include "generate/terminal.h"
#include "generate/weight_source.h"
#include "liveness/launch_watch.h"

namespace blipft {

namespace {

using nlohmann::ordered_json;

std::string line_of(const PromptedSample& prompt, const TextResult& result, const Tokenizer& tokenizer,
                    const AnswerText& answers) {
  ordered_json line{{"sample", result.number}, {"name", prompt.name}};
  if (!prompt.id.empty()) line["id"] = ordered_json::parse(prompt.id, nullptr, false);
  line["prompt"] = tokenizer.decode(prompt.ids);
  const auto texts_of = [&](const GeneratedText& text) {
    return ordered_json{{"text", answers.of(text.ids)}, {"score", text.score}, {"tokens", text.ids.size()},
                        {"end", text_end_name(text.end)}};
  };
  line.update(texts_of(result.texts.at(0)));
  for (size_t i = 1; i < result.texts.size(); ++i) line["others"].push_back(texts_of(result.texts[i]));
  if (!prompt.references.empty()) line["references"] = prompt.references;
  line["seconds"] = std::round(result.seconds * 1e4) / 1e4;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Returns the metrics of the run file, or else those that fit the samples.
std::vector<std::string> metrics_of(const Config& config, const Evaluation& texts, bool pictures) {
  if (!config.evaluate.metrics.empty() || texts.size() == 0) return config.evaluate.metrics;
  return fitting_metrics(pictures);
}

bool of_texts(const std::string& metric) { return find_metric(metric, "").input == MetricInput::texts; }

class AnswerRun {
 public:
  AnswerRun(const GenerationSource& source, const AnswerRequest& request, const World& world, Watchdog& watchdog)
      : config_(source.config), request_(request), world_(world), watchdog_(watchdog), generation_(source, world) {}

  void run() {
    Config config;
    world_.run_agreeing_on_errors([&] {
      config = request_.evaluate ? with_held_out_of_run(config_, generation_.model().source) : config_;
      set_ = std::make_unique<AnswerSet>(config, generation_.model(), request_.evaluate);
      if (!request_.evaluate) return;
      set_->check_references(config);
      if (first()) print_samples(config, generation_.model().source);
    });
    const PromptSet& prompts = set_->prompt_set();
    check_same_config(config, world_);
    check_same_samples(prompts.key(), prompts.path(), prompts.dataset(), world_);
    thumbnails_ = std::make_unique<Thumbnails>(set_->prompt_set().prompts(), world_.size());
    files_ = std::make_unique<AnswerFiles>(config_, world_);
    world_.run_agreeing_on_errors([&] { files_->open_partial(); });
    generation_.load(set_->work(world_.size()));
    groups_watch_ = std::make_unique<GroupsWatch>(watchdog_, generation_.groups());
    if (first()) {
      std::printf("weights    %s\n", generation_.text().c_str());
      const PromptSet& set = set_->prompt_set();
      std::printf("prompts    %zu of %s, %s\n", set.prompts().size(), set.from().c_str(), generation_.settings().text().c_str());
      if (const int64_t others = set.dataset().other_files().value_or(0); others > 0)
        std::printf("left out   %s there, no picture by name (.jpg, .jpeg, .png, .webp)\n", counted(others, "file").c_str());
      std::fflush(stdout);
    }
    const int64_t begin = unix_ns();
    // Ranks that share weights generate with collectives. So an error here cannot be agreed on: it leaves run(), and
    // RankGuard ends all ranks.
    generate();
    if (request_.evaluate) score_texts();
    world_.activity().phase(Activity::Phase::results);
    const double seconds = static_cast<double>(unix_ns() - begin) * 1e-9;
    finish(seconds);
  }

  // Waits until this rank's texts are written, so that they are kept if an error ends the run.
  void end_early() {
    if (answers_) files_->wait_until_written();
  }

 private:
  bool first() const { return world_.rank() == 0; }

  void generate() {
    answers_.emplace(set_->prompt_set(), generation_.tokenizer(), generation_.settings(), world_,
                     std::max(config_.data.num_workers, cores_of_a_rank(world_)));
    generation_.run(answers_->calls([&](int64_t prompt, const Image& picture) { thumbnails_->add(prompt, picture); },
                                    [&](const TextResult& result) { files_->add(line_of(result)); }));
  }

  std::string line_of(const TextResult& result) const {
    return blipft::line_of(answers_->prompt_of(result), result, generation_.tokenizer(), answers_->texts());
  }

  // Computes the likelihoods of this rank's whole texts, in groups that are computed together.
  void score_texts() {
    const auto count = static_cast<int64_t>(set_->texts().size());
    for (int64_t next = world_.rank();;) {
      std::vector<BatchSample> group;
      std::vector<std::vector<uint8_t>> pixels;
      std::vector<int64_t> numbers;
      int64_t ids = 0;
      for (; next < count; next += world_.size()) {
        const TokenizedText& text = set_->texts()[static_cast<size_t>(next)];
        if (!generation_.fits(static_cast<int64_t>(group.size()) + 1, ids + text.max_tokens())) break;
        if (!text.has_target()) continue;
        TokenizedText scored = text;
        std::optional<std::vector<uint8_t>> picture = set_->prompt_set().pixels_of_sample(next, scored);
        if (!picture) continue;            // already counted when its prompt was answered
        ids += text.max_tokens();
        group.push_back({std::move(scored), next});
        pixels.push_back(std::move(*picture));
        numbers.push_back(next);
      }
      if (!generation_.any(!group.empty())) return;
      std::vector<const uint8_t*> pictures;
      for (const std::vector<uint8_t>& one : pixels) pictures.push_back(one.data());
      const std::vector<TextLikelihood> likelihoods = generation_.score(group, pictures);
      for (size_t i = 0; i < likelihoods.size(); ++i)
        losses_.push_back({.index = numbers[i], .log_likelihood = likelihoods[i].log_likelihood, .tokens = likelihoods[i].tokens});
    }
  }

  // Returns the scores of the whole texts.
  std::vector<Score> text_scores(const std::vector<ScoredLoss>& texts) const {
    if (texts.empty()) return {};
    Evaluation losses;
    for (const ScoredLoss& one : texts) losses.add(one);
    return losses.scores(loss_metrics());
  }

  void finish(double seconds) {
    const double tokens = world_.sum(static_cast<double>(generation_.tokens()));
    const int64_t left_out = set_->prompt_set().left_out_of_all(world_);
    world_.run_agreeing_on_errors([&] { files_->check_partial(); });
    const std::vector<TextResult> results = answers_->gather();
    const std::vector<std::string> thumbnails = world_.gather_texts(thumbnails_->bytes());
    const std::vector<ScoredLoss> losses = gather_records(world_, losses_);
    world_.run_agreeing_on_errors([&] {
      if (!first()) return;
      std::printf("generated  %zu texts, %.0f tokens, %.2f s, %.0f tokens/s\n", results.size(), tokens, seconds, tokens / seconds);
      if (generation_.step_milliseconds() > 0)
        std::printf("a step     %.2f ms (the median, of a token of each text)\n", generation_.step_milliseconds());
      if (left_out > 0)
        std::printf("left out   %lld samples, the first of this rank: %s\n", static_cast<long long>(left_out),
                    set_->prompt_set().left_out().empty() ? "none" : set_->prompt_set().left_out().front().c_str());
      if (request_.evaluate) loss_scores_ = text_scores(losses);
      write_files(results, Thumbnails::of_ranks(set_->prompt_set().prompts(), thumbnails));
    });
    files_->remove_partial();
  }

  // Writes the texts in the data set's order, their scores, and the page.
  void write_files(const std::vector<TextResult>& results, std::map<std::string, std::string> thumbnails) {
    Evaluation evaluation;
    std::vector<ScoredText> all;
    std::string lines;
    for (const TextResult& result : results) {
      lines += line_of(result) + "\n";
      all.push_back(answers_->scored(result));
      if (!all.back().references.empty()) evaluation.add(all.back());
    }
    std::printf("texts      %s\n", files_->write("generated.jsonl", lines).c_str());
    const bool pictures = set_->prompt_set().about_pictures();
    if (pictures) {
      std::printf("captions   %s\n", files_->write("captions.csv", captions_csv(all, set_->prompt_set().path())).c_str());
      write_results(all);
    }
    const std::vector<Score> scores = score(evaluation, pictures);
    const std::string title = concat(pictures ? "Captions of " : "Answers to ", set_->prompt_set().path());
    const std::string page = evaluation_page({title, files_->folder(), std::move(thumbnails)}, scores,
                                             evaluation.size() == static_cast<int64_t>(all.size()) ? evaluation.texts() : all);
    std::printf("page       %s\n", files_->write("page.html", page).c_str());
  }

  // Writes the result files of COCO and VQA if every sample has an id.
  void write_results(const std::vector<ScoredText>& texts) {
    if (std::any_of(texts.begin(), texts.end(), [](const ScoredText& text) { return text.id.empty(); })) return;
    const bool vqa = std::any_of(texts.begin(), texts.end(), [](const ScoredText& text) { return text.references.size() >= 10; }) &&
                     std::any_of(config_.evaluate.metrics.begin(), config_.evaluate.metrics.end(),
                                 [](const std::string& name) { return name.starts_with("vqa_accuracy"); });
    const std::string path = files_->write("results.json", vqa ? vqa_results_json(texts) : coco_results_json(texts));
    std::printf("results    %s (%s's form)\n", path.c_str(), vqa ? "VQA" : "COCO");
  }

  std::vector<Score> score(Evaluation& evaluation, bool pictures) {
    std::vector<std::string> names;
    for (const std::string& name : metrics_of(config_, evaluation, pictures))
      if (of_texts(name)) names.push_back(name);
    BLIPFT_USER_CHECK(names.empty() || evaluation.size() > 0, set_->prompt_set().path(), ": no sample has a reference text, and ",
                      names.front(), " compares with one; choose samples with answers, or leave evaluate.metrics empty");
    std::vector<Score> scores = loss_scores_;
    if (!names.empty())
      for (Score& one : evaluation.scores(names)) scores.push_back(std::move(one));
    if (scores.empty()) return {};
    print_scores(scores);
    files_->write("scores.json", scores_json({{set_->prompt_set().path(), scores, evaluation.size()}}));
    return scores;
  }

  const Config& config_;
  const AnswerRequest& request_;
  const World& world_;
  Watchdog& watchdog_;
  Generation generation_;
  std::unique_ptr<GroupsWatch> groups_watch_;
  std::unique_ptr<AnswerSet> set_;
  std::unique_ptr<Thumbnails> thumbnails_;
  std::unique_ptr<AnswerFiles> files_;
  std::optional<PromptAnswers> answers_;
  std::vector<ScoredLoss> losses_;         // losses of this rank's texts
  std::vector<Score> loss_scores_;         // scores of all ranks' texts, on rank 0
};

}  // namespace

void answer_prompts(const Config& requested, const AnswerRequest& request, const World& world) {
  GenerationSource source;
  bool choices = false;
  world.run_agreeing_on_errors([&] {
    source = generation_source(requested);
    choices = request.evaluate && uses_choices(source.config);
  });
  if (world.rank() == 0) print_notes(source.config);
  if (!choices && request.at_terminal()) {
    LaunchWatch::together();
    return world.run_agreeing_on_errors([&] {
      BLIPFT_USER_CHECK(world.size() == 1, "--prompt, --image and --chat are answered by one rank, but there are ", world.size(),
                        "; start it without mpirun, or give a data set in generate.path");
      request.chat ? chat(source, request, world) : answer_prompt(source, request, world);
    });
  }
  RankGuard guard(source.config, world);
  check_same_config(source.config, world);
  if (choices) return guard.run([&] { answer_choices(source, world, guard.watchdog()); }, [] {});
  std::unique_ptr<AnswerRun> run;
  guard.run([&] {
    run = std::make_unique<AnswerRun>(source, request, world, guard.watchdog());
    run->run();
  }, [&] {
    if (run) run->end_early();
  });
}

}  // namespace blipft
