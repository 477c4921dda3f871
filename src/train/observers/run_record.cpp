// Keeping the files of a run folder, and what they tell a later start; see run_record.h.
#include "train/observers/run_record.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "blipft/config_rules.h"
#include "blipft/error.h"
#include "blipft/version.h"
#include "checkpoint/resume.h"
#include "checkpoint/saving.h"
#include "io/json.h"
#include "io/named_checkpoints.h"
#include "io/run_log.h"
#include "io/saved_model.h"
#include "plan/batch_choice.h"

namespace blipft {

namespace {

using nlohmann::ordered_json;

// Seconds since 1970.
double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// What is not finite is null: JSON has no other word for it.
std::string row_text(const ordered_json& row) { return row.dump(); }

std::string lost_rows(int64_t lost) {
  return row_text({{"event", "lost"}, {"rows", lost}, {"time", unix_time()}});
}

std::string lost_lines(int64_t lost) { return concat("# ", lost, " line(s) were lost here: the disk took nothing"); }

}  // namespace

void RunRecord::fail(const std::string& why) {
  const bool stop = config_.trace.on_error == TraceErrorAction::stop;
  if (stop) throw UserError(concat(why, " (trace.on_error is stop)"));
  std::fprintf(stderr, "warning: %s; the run goes on without it (trace.on_error: warn)\n", why.c_str());
}

template <class Body>
void RunRecord::keep(const Body& body) {
  try {
    body();
  } catch (const UserError& error) {
    fail(error.what());
  }
}

RunRecord::RunRecord(const Config& config, const Part& part) : config_(config), part_(part) {
  const RecordFolder folder{config.output.path, part.run_id};
  keep([&] {
    auto log = folder.open(kLogFile, record_heading(kLogFile, part.run_id), lost_lines);
    set_run_log(std::move(log), concat("# ---- part ", part.number, ": ",
                                       part.resumed ? concat("resumed after step ", part.first_step) : "the start",
                                       ", on ", part.ranks, " rank(s) ----"));
  });
  keep([&] { folder.write_config(run_file_text(config, part.ranks, part.run_id)); });
  keep([&] { begin_metrics(folder); });
}

RunRecord::~RunRecord() = default;

void RunRecord::begin_metrics(const RecordFolder& folder) {
  // Each step has one row: those that are taken again have theirs when they are.
  const int64_t cut = part_.resumed ? folder.cut_metrics(part_.first_step) : 0;
  // record_heading() is its beginning.
  ordered_json row{{"event", "run"}, {"made_by", "blipft"}, {"run_id", part_.run_id}, {"format", 1}, {"time", unix_time()}};
  metrics_ = folder.open(kMetricsFile, row_text(row), lost_rows);
  row = {{"event", part_.resumed ? "resume" : "start"}, {"step", part_.first_step}, {"part", part_.number},
         {"ranks", part_.ranks}, {"strategy", part_.strategy}, {"samples_per_step", part_.samples_per_step},
         {"total_steps", part_.total_steps}};
  if (part_.resumed) row["rows_cut"] = cut;
  row["commit"] = version_commit();
  row["time"] = unix_time();
  metrics_->add(row_text(row));
}

void RunRecord::step(const StepEvent& event) {
  if (!reported_loss_) {
    std::string why = metrics_ ? metrics_->failure() : "";
    if (why.empty()) why = run_log_failure();
    if (!why.empty()) reported_loss_ = true, fail(concat(why, ": lines are lost"));
  }
  if (!metrics_) return;
  const auto& [result, epoch, seconds] = event;
  metrics_->add(row_text({{"event", "step"}, {"step", result.step}, {"epoch", epoch}, {"loss", result.loss},
                          {"lr", result.lr}, {"grad_norm", result.grad_norm},
                          {"samples_per_second", static_cast<double>(part_.samples_per_step) / seconds},
                          {"tokens_per_second", result.text_tokens / seconds}, {"seconds", seconds},
                          {"tokens", static_cast<int64_t>(result.text_tokens)}, {"time", unix_time()}}));
}

void RunRecord::validation(const ValidationEvent& event) {
  if (!metrics_) return;
  const auto& [step, loss, tokens, seconds] = event;
  metrics_->add(row_text({{"event", "validation"}, {"step", step}, {"validation_loss", loss},
                          {"validation_tokens", tokens}, {"seconds", seconds}, {"time", unix_time()}}));
}

void RunRecord::evaluation(const EvaluationEvent& event) {
  if (!metrics_) return;
  const auto& [step, found, seconds] = event;
  ordered_json scores = ordered_json::object();
  for (const Score& score : found.scores) scores[score.metric] = score.value;
  metrics_->add(row_text({{"event", "evaluation"}, {"step", step}, {"scores", scores}, {"samples", found.samples},
                          {"seconds", seconds}, {"time", unix_time()}}));
}

void RunRecord::end(const EndEvent& event) {
  if (!metrics_) return;
  const auto& [steps, train_seconds, reason] = event;
  metrics_->add(row_text({{"event", "end"}, {"step", steps - 1}, {"total_steps", part_.total_steps}, {"reason", reason},
                          {"train_seconds", train_seconds}, {"time", unix_time()}}));
}

namespace {

struct EndedRun {
  std::string run_id;
  int64_t steps = 0, total_steps = 0;      // total: that it would have taken, had it not ended early
};

// The run whose last word in the folder is that it is done.
std::optional<EndedRun> ended_run(const std::string& folder) {
  const std::string run_id = run_of_record_file(folder, kMetricsFile);
  if (run_id.empty() || run_id != run_of_record_file(folder, kConfigFile)) return std::nullopt;
  try {
    const auto row = io::parse_json(last_metrics_row(folder), kMetricsFile);
    if (row.value("event", "") != "end" || row.value("reason", "") != kDone) return std::nullopt;
    const int64_t steps = row.value("step", int64_t{-1}) + 1;
    return EndedRun{run_id, steps, row.value("total_steps", steps)};
  } catch (const std::exception&) {        // half a row
    return std::nullopt;
  }
}

// Keys with which a run that has ended is not the one that is asked for, though a run may go on with another value: what it
// reads, when it ends, and what it leaves.
bool makes_another_end(const std::string& key, OnResume rule) {
  static const std::set<std::string> keys{"model.path", "adapter.path", "data.path", "data.val_path", "data.pictures",
                                          "train.early_stopping_patience"};
  return rule == OnResume::refused || rule == OnResume::length || keys.count(key) > 0 || key.starts_with("output.save");
}

bool is_what_was_asked(const Config& asked, const Config& then, int64_t ranks) {
  const auto old_values = config_values(then);
  const std::map<std::string, std::string> before(old_values.begin(), old_values.end());
  for (const auto& [key, value] : config_values(with_absolute_paths(asked)))
    if (makes_another_end(key, rules_of(key).on_resume) && before.at(key) != value) return false;
  return samples_of_a_step(asked, ranks) == samples_of_a_step(then, then.parallel.devices);
}

// Returns true if each model that the run saves is there, under its own name or one beside it.
bool is_saved(const Config& config, const std::string& run_id) {
  if (!config.output.save_model) return true;
  const std::vector<SaveSettings> all = SaveSettings::of(config);
  return std::all_of(all.begin(), all.end(), [&](const SaveSettings& settings) {
    const std::vector<std::string> names = io::saved_names(config.output.path, settings.folder());
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      const io::SavedModel model = io::saved_model(config.output.path + "/" + name);
      return model.whole && model.marker.run_id == run_id;
    });
  });
}

// What leads on from there, which is more than a larger number where a checkpoint and the learning rates allow it.
std::string advice(const Config& config, const EndedRun& ended, const std::string& newest) {
  const char* key = ended.steps < ended.total_steps              ? "train.early_stopping_patience"
                    : config.train.max_steps == ended.steps ? "train.max_steps" : "train.max_epochs";
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
  Config asked = resolve_for_ranks(config, ranks);
  if (chooses_batch_size(asked)) asked = before_choice(asked, ranks);
  try {
    if (!is_what_was_asked(asked, load_config((std::filesystem::path(folder) / kConfigFile).string(), {}), ranks)) return "";
  } catch (const UserError&) {             // of another version of the program, or changed by hand
    return "";
  }
  return concat("ended      the run in ", folder, " has ended, after ", counted(ended->steps, "step"),
                "; nothing is trained or written", advice(config, *ended, newest));
}

}  // namespace

std::string ended_text(const Config& config, const World& world) {
  if (config.checkpoint.resume != ResumeMode::automatic) return "";
  std::string text;
  world.together([&] {
    if (world.rank() == 0) text = text_on_first(config, world.size());
  });
  return world.from_rank(0, text);
}

}  // namespace blipft
