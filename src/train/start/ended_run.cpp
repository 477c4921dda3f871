// A run that has ended before; see ended_run.h.
#include "train/start/ended_run.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <map>
#include <set>

#include "agreement/output_folder.h"
#include "agreement/record_files.h"
#include "blipft/config_rules.h"
#include "blipft/error.h"
#include "checkpoint/saving.h"
#include "config/config_facts.h"
#include "io/json.h"
#include "io/named_checkpoints.h"
#include "io/saved_model.h"
#include "plan/batch_choice.h"
#include "train/start/resumed_run.h"

namespace blipft {

namespace {

struct EndedRun {
  std::string run_id;
  int64_t steps = 0, total_steps = 0;      // total_steps: without an early end
};

// Returns the run whose last row of metrics.jsonl in `folder` has the reason kDone, or nullopt if there is none.
std::optional<EndedRun> ended_run(const std::string& folder) {
  const std::string run_id = run_of_record_file(folder, kMetricsFile);
  if (run_id.empty() || run_id != run_of_record_file(folder, kConfigFile)) return std::nullopt;
  try {
    const auto row = io::parse_json(last_metrics_row(folder), kMetricsFile);
    if (row.value("event", "") != "end" || row.value("reason", "") != kDone) return std::nullopt;
    const int64_t steps = row.value("step", int64_t{-1}) + 1;
    return EndedRun{run_id, steps, row.value("total_steps", steps)};
  } catch (const std::exception&) {        // the row is incomplete
    return std::nullopt;
  }
}

// Returns true if another value of `key` makes the requested run different from one that has ended. In addition to the
// keys that a resume refuses, these are the keys that decide the inputs, the end and the saved files of the run.
bool makes_another_end(const std::string& key, OnResume rule) {
  static const std::set<std::string> keys{"model.path", "adapter.path", "data.path", "data.val_path", "data.pictures",
                                          "train.early_stopping_patience"};
  return rule == OnResume::refused || rule == OnResume::length || keys.count(key) > 0 || key.starts_with("output.save");
}

bool is_as_requested(const Config& requested, const Config& then, int64_t ranks) {
  const auto old_values = config_values(then);
  const std::map<std::string, std::string> before(old_values.begin(), old_values.end());
  for (const auto& [key, value] : config_values(with_absolute_paths(requested)))
    if (makes_another_end(key, rules_of(key).on_resume) && before.at(key) != value) return false;
  return samples_of_a_step(requested, ranks) == samples_of_a_step(then, then.parallel.devices);
}

// Returns true if each model that the run saves exists, as model/ or with a number (model-2/).
bool is_saved(const Config& config, const std::string& run_id) {
  const std::vector<std::string> all = output_names(config).saved;
  return std::all_of(all.begin(), all.end(), [&](const std::string& saved) {
    const std::vector<std::string> names = io::saved_names(config.output.path, std::filesystem::path(saved).filename().string());
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      const io::SavedModel model = io::saved_model(config.output.path + "/" + name);
      return model.whole && model.marker.run_id == run_id;
    });
  });
}

// Returns advice on how to continue after an ended run. A larger limit is advised only if there is a checkpoint and the
// learning rates allow it.
std::string advice(const Config& config, const EndedRun& ended, const std::string& newest) {
  const char* key = ended.steps < ended.total_steps              ? "train.early_stopping_patience"
                    : config.steps.max_steps == ended.steps ? "train.max_steps" : "train.max_epochs";
  std::string text = "; ";
  if (!newest.empty() && (length_may_change(config) || ended.steps < ended.total_steps))
    text += concat("a larger ", key, " trains on from ", newest, ", ");
  return text + "another output.path begins a new run, and so do checkpoint.resume=never output.overwrite=true here";
}

std::string text_on_first(const Config& config, int64_t ranks) {
  const std::string& folder = config.output.path;
  const std::optional<EndedRun> ended = ended_run(folder);
  if (!ended || !is_saved(config, ended->run_id)) return "";
  std::string newest;
  for (const io::NamedCheckpoint& one : io::named_checkpoints(checkpoints_folder(config))) {
    if (!one.is_whole()) continue;
    if (one.step > ended->steps || (!one.run_id.empty() && one.run_id != ended->run_id)) return "";
    newest = checkpoints_folder(config) + "/" + one.name;
  }
  Config requested = resolve_for_ranks(config, ranks);
  if (chooses_batch_size(requested)) requested = before_choice(requested, ranks);
  try {
    if (!is_as_requested(requested, load_config((std::filesystem::path(folder) / kConfigFile).string(), {}), ranks)) return "";
  } catch (const UserError&) {             // written by another version of blipft, or edited
    return "";
  }
  return concat("ended      the run in ", folder, " has ended, after ", counted(ended->steps, "step"),
                "; nothing is trained or written", advice(config, *ended, newest));
}

}  // namespace

std::optional<std::string> ended_text(const Config& config, const World& world) {
  if (config.checkpoint.resume != ResumeMode::automatic) return std::nullopt;
  std::string text;
  world.run_agreeing_on_errors([&] {
    if (world.rank() == 0) text = text_on_first(config, world.size());
  });
  text = world.from_rank(0, text);
  return text.empty() ? std::nullopt : std::optional(text);
}

}  // namespace blipft
