// Finding and checking a checkpoint; see resume.h.
#include "checkpoint/resume.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "blipft/config_rules.h"

#include "io/named_checkpoints.h"

namespace blipft {

namespace fs = std::filesystem;

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

std::string newest_checkpoint(const std::string& checkpoints) {
  // An unreadable folder must not count as a folder without checkpoints: the run would start from the beginning.
  const auto check = [](const std::error_code& error, const fs::path& path) {
    const bool absent = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
    BLIPFT_USER_CHECK(!error || (absent && !fs::is_symlink(path)), path.string(), ": cannot be looked at for checkpoints: ",
                      error.message(), "; is its file system mounted? With checkpoint.resume=never a run begins anew");
    return !error;
  };
  std::error_code error;
  const fs::directory_iterator looked(checkpoints, error);
  if (!check(error, checkpoints)) return "";
  std::string newest, latest;              // newest by step, latest by file time
  fs::file_time_type latest_time;
  for (const io::NamedCheckpoint& one : io::named_checkpoints(checkpoints)) {
    if (one.end != io::NamedCheckpoint::End::none) continue;
    const fs::path index = fs::path(checkpoints) / one.name / "checkpoint.json";
    std::error_code unread;
    const fs::file_time_type time = fs::last_write_time(index, unread);
    if (one.claims) check(unread, index);
    if (!one.own && !one.claims) {         // of another program, or an incomplete copy
      std::fprintf(stderr, "note: %s is left out of account: %s\n", index.parent_path().c_str(), one.why.c_str());
      continue;
    }
    newest = index.parent_path().string(); // sorted by step
    if (unread || (!latest.empty() && time <= latest_time)) continue;
    latest = newest, latest_time = time;
  }
  if (!latest.empty() && latest != newest)
    std::fprintf(stderr, "note: %s is of the latest step, and the run goes on from it, though %s was written later; was a "
                 "clock set back, or an earlier checkpoint gone on from? checkpoint.resume=PATH takes another\n",
                 newest.c_str(), latest.c_str());
  return newest;
}

void check_resume_folder(const Config& config) {
  if (config.checkpoint.resume == ResumeMode::never || config.checkpoint.resume == ResumeMode::automatic) return;
  const std::string& folder = config.checkpoint.resume.text;
  BLIPFT_USER_CHECK(fs::is_directory(folder), place_of(config, "checkpoint.resume"), ": checkpoint.resume: ", folder,
                    " is no folder; expected a checkpoint, such as ", checkpoints_folder(config), "/",
                    io::checkpoint_name(100), ", or auto");
}

std::unique_ptr<ResumePoint> find_resume_point(const Config& config, const World& world) {
  if (config.checkpoint.resume == ResumeMode::never) return nullptr;
  std::string folder = config.checkpoint.resume.text;
  // Rank 0 chooses: on a network file system, other ranks may see a new folder later.
  world.run_agreeing_on_errors([&] {
    if (config.checkpoint.resume == ResumeMode::automatic)
      folder = world.rank() == 0 ? newest_checkpoint(checkpoints_folder(config)) : "";
  });
  folder = world.from_rank(0, folder);
  if (folder.empty()) return nullptr;
  auto point = std::make_unique<ResumePoint>();
  point->folder = folder;
  world.run_agreeing_on_errors([&] {
    check_resume_folder(config);
    point->index = io::read_index(folder);
  });
  return point;
}

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
  const bool means = config.train.loss_normalization == LossNormalization::micro_batch, padding = config.train.loss_on_padding;
  const auto number = [&](const char* name) {
    const auto found = point.index.run.find(name);
    return found == point.index.run.end() ? "unknown" : found->second;
  };
  const std::string samples = std::to_string(samples_of_a_step(config, ranks));
  if (samples != number("samples_of_a_step"))
    differs("the number of samples of a step (train.batch_size x train.accumulate_grad_batches x ranks)", samples,
            number("samples_of_a_step"));
  if (const std::string batch = std::to_string(config.train.batch_size);
      (means || padding) && batch != number("batch_size"))
    differs(concat("train.batch_size (which ", means ? "the mean of train.loss_normalization=micro_batch" :
                   "the padding that train.loss_on_padding learns", " depends on)"), batch, number("batch_size"));
  const std::string schedule = !longer ? "" : concat(
      " The learning rate (train.lr_schedule=", config.train.lr_schedule, config.train.warmup_ratio > 0 ? ", train.warmup_ratio" : "",
      ") depends on the run's length, so the length cannot change. To continue from the trained weights, start a new run with ",
      "the saved model as model.path, or the saved adapter as adapter.path.");
  BLIPFT_USER_CHECK(differences.empty(), place_of(config, "checkpoint.resume"), ": checkpoint.resume: ", point.folder,
                    " is of another run: ", differences, ".", schedule, " Give what was there to go on with that run, or ",
                    "checkpoint.resume=never and another output.path for a new one");
}

std::string check_same_content(const Config& config, const ResumePoint& point, const Facts& facts) {
  std::string changes;
  for (const Fact& fact : facts) {
    const auto found = point.index.run.find(fact.name);
    if (found == point.index.run.end() || found->second == fact.value) continue;
    // With loss_on_padding, other validation texts may change the padding of training texts.
    BLIPFT_USER_CHECK(fact.evaluates && !config.train.loss_on_padding, place_of(config, "checkpoint.resume"),
                      ": checkpoint.resume: ", point.folder, ": ", fact.name, " is ", shortened(fact.value), " here (",
                      fact.place, "), ", shortened(found->second), " there; give the run the files that it began with");
    changes += concat(changes.empty() ? "" : ", ", fact.name, " ", shortened(fact.value), " instead of ",
                      shortened(found->second));
  }
  return changes;
}

std::string what_was_changed(const Config& config, const ResumePoint& point) {
  std::string changes;
  for (const Changed& one : changed_keys(config, point))
    if (one.rule != OnResume::unreported)
      changes += concat(changes.empty() ? "" : ", ", one.key, " ", shortened(one.now), " instead of ",
                        shortened(one.then));
  return changes;
}

std::string what_may_change_bits(const ResumePoint& point, const std::map<std::string, std::string>& now) {
  std::string changes;
  for (const auto& [name, value] : now) {
    const auto found = point.index.run.find(name);
    if (found == point.index.run.end() || found->second == value) continue;
    changes += concat(changes.empty() ? "" : ", ", name, " ", value, " instead of ", found->second);
  }
  return changes;
}

}  // namespace blipft
