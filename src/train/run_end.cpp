// The end of a run; see run_end.h.
#include "train/run_end.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "agreement/record_files.h"
#include "base/memory_text.h"
#include "checkpoint/saving.h"
#include "checkpoint/training_state.h"
#include "io/named_checkpoints.h"
#include "io/saved_model.h"
#include "weights/adapter_files.h"

namespace blipft {

namespace fs = std::filesystem;

namespace {

using SavedFolders = std::vector<std::string>;

// Planned memory of a rank's device, and the most that the driver has reported for any rank.
void print_memory(const World& world, const RunTrace& trace) {
  const int64_t measured = world.max(trace.measured_bytes()), planned = trace.planned_bytes();
  if (world.rank() > 0 || measured == 0) return;
  std::printf("memory: planned %s, measured %s (difference %+.1f %%)\n", memory_text(planned).c_str(),
              memory_text(measured).c_str(), 100 * (static_cast<double>(measured) / static_cast<double>(planned) - 1));
}

// Returns the folder of the complete checkpoint after `steps` steps: in the run's folder of checkpoints or, in a
// resumed run, next to the checkpoint from which it resumed. Returns "" if there is none.
std::string checkpoint_after(int64_t steps, const TrainingResources& r, const RunResults& results) {
  std::vector<std::string> folders = {results.checkpoints.folder_of(steps)};
  const std::string name = fs::path(folders[0]).filename().string();
  if (r.run.resume) folders.push_back((fs::path(r.run.resume->folder).parent_path() / name).string());
  for (const std::string& folder : folders)
    if (io::named_checkpoint(fs::path(folder).parent_path().string(), name).is_whole()) return folder;
  return "";
}

// Replaces the weights of the last step by those of the best checkpoint. Returns the number of its steps. If the best
// checkpoint is missing (its writing failed, or somebody removed it), warns and keeps the weights of the last step.
int64_t load_best_weights(const TrainingResources& r, const RunResults& results) {
  const BestValidation& best = results.best;
  if (best.steps() < 0 || best.steps() == results.end.steps) return results.end.steps;
  const std::string folder = r.world.from_rank(0, r.first_rank() ? checkpoint_after(best.steps(), r, results) : "");
  if (folder.empty()) {
    if (r.first_rank())
      std::fprintf(stderr, "warning: output.save_best: %s: found no whole checkpoint with the weights of the best %s; the weights "
                   "of the last step are saved instead\n", results.checkpoints.folder_of(best.steps()).c_str(), best.metric().c_str());
    return results.end.steps;
  }
  r.world.run_agreeing_on_errors([&] { restore_state(r.weight_context(), io::read_index(folder), folder, 4); });
  if (r.first_rank())
    std::printf("best       %s %.6g, after step %lld; saving these weights\n", best.metric().c_str(), best.value(),
                static_cast<long long>(best.steps()));
  return best.steps();
}

SavedFolders save(const TrainingResources& r, const RunResults& results) {
  const Config& config = r.config();
  if (!config.output.save_model || results.end.stopped_by) return {};
  const int64_t steps = config.output.save_best ? load_best_weights(r, results) : results.end.steps;
  SavedFolders saved;
  for (const SaveSettings& settings : SaveSettings::of(config)) {
    const std::string& wanted = r.plan.outputs.saved[saved.size()];
    const std::string folder = r.world.from_rank(0, r.first_rank() ? io::free_saved_name(wanted) : "");
    saved.push_back(save_weights(r.weight_context(), r.world,
                                 {.directory = folder,
                                  .source = config.model.path,
                                  .settings = settings,
                                  .checkpoint = r.sources.checkpoint.get(),
                                  .adapter_config = adapter_config({config.model, config.adapter, config}, r.model().units()),
                                  .chat_template = r.data.texts.chosen_template,
                                  .origin = {r.run.id, steps}}));
    if (r.first_rank() && saved.back() != wanted)
      std::fprintf(stderr, "warning: %s: something that is not a saved model of this run has this name or needs it; it was "
                   "left alone, and the weights are in %s\n", wanted.c_str(), saved.back().c_str());
  }
  return saved;
}

// Prints the result of a trial run (--smoke).
void print_smoke_end(const TrainingResources& r, const RunEnd& end, const RunObservers& observers) {
  std::printf("smoke      %s, %s; nothing was saved\n",
              end.stopped_by ? concat("stopped by ", *end.stopped_by).c_str() : "it runs here",
              observers.progress.summary(std::max(observers.trace.measured_bytes(), r.arena->total_bytes())).c_str());
  std::fflush(stdout);
}

void print_end(const TrainingResources& r, const RunResults& results, const SavedFolders& saved, const RunTrace& trace,
               int64_t lost_traces, double ready_seconds) {
  const RunEnd& end = results.end;
  const BestValidation& best = results.best;
  const std::string traces = trace.path();
  if (lost_traces > 0)
    std::printf("trace      %s (one file a rank; not whole: those of %lld ranks)\n", traces.c_str(),
                static_cast<long long>(lost_traces));
  else if (r.config().trace.enabled) std::printf("trace      %s (one file a rank)\n", traces.c_str());
  for (const std::string& folder : saved) std::printf("model      %s\n", folder.c_str());
  if (!results.checkpoints.newest().empty()) std::printf("checkpoint %s\n", results.checkpoints.newest().c_str());
  if (end.early_stop) std::printf("early stop %s\n", end.early_stop->c_str());
  if (!saved.empty() && !r.config().output.save_best && best.steps() >= 0 && best.steps() != end.steps)
    std::printf("note: the best %s, %.6g, was after step %lld; the saved model is that of step %lld (output.save_best=true saves "
                "the best)\n", best.metric().c_str(), best.value(), static_cast<long long>(best.steps()), static_cast<long long>(end.steps));
  if (end.stopped_by)
    std::printf("stopped    by %s; checkpoint.resume=auto resumes from that checkpoint\n", end.stopped_by->c_str());
  const double total = r.times.seconds();
  std::printf("total      %.1f s from start to end (start %.1f s, training %.1f s, end %.1f s)\n", total, ready_seconds,
              end.train_seconds, total - ready_seconds - end.train_seconds);
  std::fflush(stdout);
}

}  // namespace

void finish_run(const TrainingResources& r, const RunResults& results, const RunObservers& observers, RunFaults& faults,
                double ready_seconds) {
  const RunEnd& end = results.end;
  const auto event = [&end](const std::string& reason) { return EndEvent{end.steps, end.train_seconds, reason}; };
  observers.progress.print_totals(r.world.max(end.train_seconds), r.arena->total_bytes());
  observers.trace.driver_memory(end.steps - 1);
  print_memory(r.world, observers.trace);
  if (const std::string energy = observers.trace.energy(); r.first_rank()) std::printf("energy: %s\n", energy.c_str());
  faults.before_saving(r.run.first_step, end.steps, observers.all);
  const SavedFolders saved = save(r, results);
  if (!saved.empty()) observers.trace.scratch_memory(end.steps - 1, "saving", r.plan.memory.saving_bytes);
  observers.all.end(event(end.reason()));  // written right after saving: without this row the run was killed
  observers.trace.close();
  const auto lost = static_cast<int64_t>(r.world.sum(observers.trace.failure().empty() ? 0.0 : 1.0));
  const bool loses = lost > 0 && r.config().trace.on_error == TraceErrorAction::stop;
  faults.stop_watching();
  r.backend.groups->withdraw();
  if (r.first_rank()) {
    if (loses) observers.record->end(event("traces that are not whole"));
    observers.record->close();
    if (r.config().smoke_steps > 0) print_smoke_end(r, end, observers);
    else print_end(r, results, saved, observers.trace, lost, ready_seconds);
  }
  faults.after_saving(saved);
  if (end.lost_checkpoint) throw AgreedError(*end.lost_checkpoint);
  if (loses) throw AgreedError(concat("the traces of ", lost, " rank(s) are not whole (trace.on_error is stop)"));
}

}  // namespace blipft
