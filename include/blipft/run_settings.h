// RunSettings: what a run computes, and where its results go.
#pragma once

#include <cstdint>
#include <string>

#include "blipft/engine_settings.h"

namespace blipft {

/// output.save: all tensors of the model, or only the trained ones.
enum class SavedTensors { all, trained };
BLIPFT_CHOICE_WORDS(SavedTensors, "all", "trained");
/// output.save_dtype
enum class SavedDtype { automatic, f32, bf16 };
BLIPFT_CHOICE_WORDS(SavedDtype, "auto", "f32", "bf16");
/// checkpoint.resume, unless it is the path of a checkpoint.
enum class ResumeMode { never, automatic };
BLIPFT_CHOICE_WORDS(ResumeMode, "never", "auto");
/// checkpoint.keep_best, unless it is the name of a metric.
enum class BestCriterion { none, loss };
BLIPFT_CHOICE_WORDS(BestCriterion, "none", "loss");
/// checkpoint.time_limit, unless it is a duration.
enum class TimeLimit { none };
BLIPFT_CHOICE_WORDS(TimeLimit, "none");

/// Checkpoints to go on from: trained parameters, optimizer states, place in the data.
struct CheckpointSection {
  int64_t every_steps = 0;              ///< 0: not by steps
  double every_minutes = 0;             ///< 0: not by time
  int64_t keep = 2;                     ///< number of newest checkpoints to keep
  /// Also keep the checkpoint with the best loss or metric.
  ChoiceOrText<BestCriterion> keep_best = BestCriterion::none;
  std::string path;                     ///< their folder; empty: checkpoints/ under output.path
  ChoiceOrText<ResumeMode> resume = ResumeMode::never;  ///< auto: from the newest whole checkpoint, or a path
  ChoiceOrText<TimeLimit> time_limit = TimeLimit::none;  ///< minutes or a Slurm time; a checkpoint is written before it
  double host_gib = 0;                  ///< page-locked host memory of a rank for what is being written; 0: as much as a
                                        ///< checkpoint takes, but at most a quarter of the rank's share of the machine
};

struct OutputSection {
  std::string path = "runs/run";        ///< directory of this run: traces, saved model
  bool overwrite = false;               ///< a directory that holds another run's results is taken, these are replaced
  bool save_model = false;              ///< write model/ in Hugging Face form at the end
  bool save_best = false;               ///< true: saves the best checkpoint (checkpoint.keep_best), not the weights of the last step
  SavedTensors save = SavedTensors::all;
  bool save_merged = false;             ///< with adapters: write model/ too, with the adapters merged into its weights
  SavedDtype save_dtype = SavedDtype::automatic;  ///< auto: trained as master weights, frozen as stored
  int64_t memory_every = 50;            ///< steps between the memory lines; also at steps 0 and 1
  double progress_seconds = 2;          ///< between progress lines when not on a terminal
};

struct RunSettings : EngineSettings {
  CheckpointSection checkpoint;
  OutputSection output;
};

/// Returns true if the run writes checkpoints during training, and not only when it receives a request to stop.
inline bool writes_checkpoints(const RunSettings& settings) {
  const CheckpointSection& checkpoint = settings.checkpoint;
  return checkpoint.every_steps > 0 || checkpoint.every_minutes > 0 || checkpoint.keep_best != BestCriterion::none;
}
/// The folder of the run's checkpoints.
std::string checkpoints_folder(const RunSettings& settings);
/// checkpoint.time_limit; 0: none. Throws UserError when the text is no time.
double time_limit_seconds(const RunSettings& settings);

}  // namespace blipft
