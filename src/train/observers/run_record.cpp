// Keeping the files of a run folder; see run_record.h.
#include "train/observers/run_record.h"

#include <chrono>
#include <cstdio>

#include "blipft/error.h"
#include "blipft/version.h"
#include "config/config_facts.h"
#include "io/json.h"
#include "io/run_log.h"

namespace blipft {

namespace {

using nlohmann::ordered_json;

// Seconds since 1970.
double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Non-finite numbers become null because JSON cannot represent them.
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
  // Each step has one row: rows of steps that will be repeated are removed.
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

}  // namespace blipft
