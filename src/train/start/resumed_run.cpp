// Compares the keys of a run with those of a checkpoint; see resumed_run.h.
#include "train/start/resumed_run.h"

#include <map>
#include <vector>

#include "blipft/config_rules.h"
#include "blipft/error.h"

namespace blipft {

namespace {

// Returns true if a run may be resumed with another value of a key that has this rule.
bool may_change(const Config& config, OnResume rule) {
  return rule == OnResume::length ? length_may_change(config) : rule != OnResume::refused;
}

// A key whose value differs from the checkpoint's.
struct Changed {
  std::string key;
  OnResume rule;
  std::string now, then;
};

// Returns the keys with other values than in the checkpoint. A key that the checkpoint lacks is newer than the
// checkpoint and counts with its default value.
std::vector<Changed> changed_keys(const Config& config, const ResumePoint& point) {
  const std::map<std::string, std::string> before(point.index.config.begin(), point.index.config.end());
  std::vector<Changed> changed;
  for (const auto& [key, value] : config_values(config)) {
    const KeyRules rules = rules_of(key);
    const auto found = before.find(key);
    const std::string then = found == before.end() ? rules.default_value : found->second;
    if (value != then) changed.push_back({key, rules.on_resume, value, then});
  }
  return changed;
}

std::string shortened(const std::string& text) { return text.size() > 80 ? text.substr(0, 77) + "..." : text; }

}  // namespace

bool length_may_change(const Config& config) {
  return config.train.lr_schedule == LearningRateCurve::constant && config.train.warmup_ratio == 0;
}

void check_same_run(const Config& config, const ResumePoint& point, int64_t ranks) {
  std::string differences;
  const auto differs = [&](const std::string& key, const std::string& now, const std::string& then) {
    differences += concat(differences.empty() ? "" : "; ", key, " is ", shortened(now), " here, ", shortened(then),
                          " there");
  };
  bool longer = false;                     // or shorter: the length changed
  for (const Changed& one : changed_keys(config, point))
    if (!may_change(config, one.rule)) {
      differs(one.key, one.now, one.then);
      longer |= one.key == "train.max_epochs" || one.key == "train.max_steps";
    }
  const bool means = config.steps.loss_normalization == LossNormalization::micro_batch, padding = config.steps.loss_on_padding;
  const auto number = [&](const char* name) {
    const auto found = point.index.run.find(name);
    return found == point.index.run.end() ? "unknown" : found->second;
  };
  const std::string samples = std::to_string(samples_of_a_step(config, ranks));
  if (samples != number("samples_of_a_step"))
    differs("the number of samples of a step (train.batch_size x train.accumulate_grad_batches x ranks)", samples,
            number("samples_of_a_step"));
  if (const std::string batch = std::to_string(config.steps.batch_size);
      (means || padding) && batch != number("batch_size"))
    differs(concat("train.batch_size (which ", means ? "the mean of train.loss_normalization=micro_batch" :
                   "the padding that train.loss_on_padding learns", " depends on)"), batch, number("batch_size"));
  const std::string schedule = !longer ? "" : concat(
      " The learning rate (train.lr_schedule=", config.train.lr_schedule, config.train.warmup_ratio > 0 ? ", train.warmup_ratio" : "",
      ") depends on the run's length, so the length cannot change. To continue from the trained weights, start a new run with ",
      "the saved model as model.path, or the saved adapter as adapter.path.");
  BLIPFT_USER_CHECK(differences.empty(), location_of(config, "checkpoint.resume"), ": checkpoint.resume: ", point.folder,
                    " is of another run: ", differences, ".", schedule, " Give what was there to go on with that run, or ",
                    "checkpoint.resume=never and another output.path for a new one");
}

std::string what_was_changed(const Config& config, const ResumePoint& point) {
  std::string changes;
  for (const Changed& one : changed_keys(config, point))
    if (one.rule != OnResume::unreported)
      changes += concat(changes.empty() ? "" : ", ", one.key, " ", shortened(one.now), " instead of ",
                        shortened(one.then));
  return changes;
}

}  // namespace blipft
