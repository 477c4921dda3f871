// The metrics of a run file; see run_metrics.h.
#include "generate/run_metrics.h"

#include <algorithm>

#include "blipft/error.h"
#include "blipft/evaluate.h"

namespace blipft {

namespace {

const Metric& metric_of(const Config& config, const std::string& name, const char* key) {
  return find_metric(name, location_of(config, key) + ": " + key);
}

bool of_texts(const std::string& name) { return find_metric(name, "").input == MetricInput::texts; }

bool keeps_score(const Config& config) { return config.checkpoint.keep_best != BestCriterion::none && config.checkpoint.keep_best != BestCriterion::loss; }

}  // namespace

std::vector<std::string> fitting_metrics(bool pictures) {
  return pictures ? std::vector<std::string>{"bleu4", "rouge_l", "cider"} : std::vector<std::string>{"exact_match", "rouge_l"};
}

const std::vector<std::string>& loss_metrics() {
  static const std::vector<std::string> names{"loss", "perplexity"};
  return names;
}

void check_metrics(const Config& config) {
  const std::vector<std::string>& names = config.evaluate.metrics;
  for (const std::string& name : names) {
    const Metric& metric = metric_of(config, name, "evaluate.metrics");
    const bool computed = std::count(loss_metrics().begin(), loss_metrics().end(), name) > 0;
    BLIPFT_USER_CHECK(metric.input != MetricInput::losses || computed, location_of(config, "evaluate.metrics"),
                      ": evaluate.metrics: found ", name, ", which needs the likelihood of a whole raw text, expected ",
                      "a metric that --evaluate computes. Take perplexity, which is per token.");
  }
  if (generates(config))
    BLIPFT_USER_CHECK(names.empty() || std::any_of(names.begin(), names.end(), of_texts), location_of(config, "evaluate.metrics"),
                      ": evaluate.metrics: names no metric of generated texts, which evaluate.samples asks for; add one, or "
                      "remove samples");
  if (!keeps_score(config)) return;
  const char* const key = "checkpoint.keep_best";
  const Metric& best = metric_of(config, config.checkpoint.keep_best.text, key);
  BLIPFT_USER_CHECK(best.input == MetricInput::texts, location_of(config, key), ": ", key, ": found ", best.name,
                    ", which validations do not compute; expected none, loss, or a metric of generated texts, such as cider or "
                    "exact_match");
}

std::vector<std::string> metrics_of_validations(const Config& config, bool pictures) {
  std::vector<std::string> names;
  for (const std::string& name : config.evaluate.metrics.empty() ? fitting_metrics(pictures) : config.evaluate.metrics)
    if (of_texts(name)) names.push_back(name);
  if (keeps_score(config) && std::count(names.begin(), names.end(), config.checkpoint.keep_best.text) == 0)
    names.push_back(config.checkpoint.keep_best.text);
  return names;
}

bool best_is_highest(const Config& config) {
  return keeps_score(config) && find_metric(config.checkpoint.keep_best.text, "").higher_is_better;
}

}  // namespace blipft
