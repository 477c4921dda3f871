// Checkpoints: decides when a run writes a checkpoint, and completes it: each rank writes one file to step-N.partial/,
// then rank 0 writes the index and renames the folder.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "agreement/disk_room.h"
#include "base/start_times.h"
#include "blipft/comm.h"
#include "blipft/run_settings.h"
#include "checkpoint/state_writer.h"
#include "liveness/stop_request.h"
#include "weights/weights.h"

namespace blipft {

/// Name in CheckpointParts::run of the step with the best validation; checkpoint.keep_best keeps its checkpoint.
constexpr const char* kBestStep = "best_step";

/// Returns the bytes of a checkpoint: the files of all ranks together.
int64_t checkpoint_bytes(const Units& units, const ParameterStore& store);

/// Returns the bytes of page-locked host memory for a rank with `state_bytes` of state, as checkpoint.host_gib
/// specifies; 0 for a run that writes a checkpoint only if it is stopped. `machine_ranks`: number of ranks that share
/// the machine.
int64_t checkpoint_staging_bytes(const RunSettings& config, int64_t state_bytes, int64_t machine_ranks);

/// "checkpoints of 39.1 GiB, every 100 steps, ...": the checkpoints of a run, their host memory, and how long a step
/// waits for one; "" for a run that writes a checkpoint only if it is stopped.
std::string checkpoints_text(const RunSettings& config, const Units& units, const ParameterStore& store, int64_t ranks,
                             int64_t machine_ranks);

/// Returns the disk space that checkpoints of `bytes` each still need: all kept ones and one that is being written,
/// minus the earlier ones of `run_id`. The space is optional for a run that writes a checkpoint only if it is stopped.
FileToWrite checkpoints_to_write(const RunSettings& config, int64_t bytes, const std::string& run_id);

struct CheckpointParts {
  const RunSettings* config = nullptr;
  std::vector<std::pair<std::string, std::string>> keys;  ///< config_values()
  const World* world = nullptr;
  const StartTimes* times = nullptr;
  const StopRequest* stop = nullptr;
  WeightContext weights;
  int64_t replica = 0;                     ///< index of this rank among the ranks with the same shards
  std::map<std::string, std::string> run;  ///< see StateIndex
  std::string resumed;                     ///< the checkpoint that the run resumes from; "": none
  std::string gemm_table;                  ///< file with the algorithms of matrix products, to be copied; "": none
};

class Checkpoints {
 public:
  explicit Checkpoints(CheckpointParts parts);
  /// Returns true if a checkpoint must be written now, after `done` steps; the last one took about `step_seconds`. All
  /// ranks must call it after every step. It also completes a checkpoint if all ranks have finished writing it.
  bool due(int64_t done, double step_seconds);
  /// The reason why the run must end with this checkpoint ("SIGUSR1", "SIGINT", "checkpoint.time_limit"); "": it
  /// continues.
  const std::string& stop_reason() const { return stop_reason_; }
  /// Starts to write the state after `done` steps. The device must be idle. All ranks must call it.
  void write(int64_t done);
  /// Adds facts about the run to all checkpoints that start from now on.
  void add_to_run(const std::map<std::string, std::string>& facts);
  /// Waits for the checkpoint that is being written, if any, and completes it. Throws AgreedError if it failed.
  void finish();

  /// The result of one checkpoint.
  struct Outcome {
    int64_t step = 0, bytes = 0;           ///< bytes of all ranks
    double pause_seconds = 0, write_seconds = 0;  ///< times of the slowest rank
    double waited_seconds = 0;                    ///< part of the pause: wait for the previous checkpoint
    std::string folder, failure;           ///< failure is "" if the checkpoint is complete
  };
  /// Returns the next checkpoint that was completed or has failed; false if there is none.
  bool outcome(Outcome& outcome);
  /// Returns the folder of the checkpoint after `step` steps, whether it exists or not.
  std::string folder_of(int64_t step) const;
  /// The folder of the last complete checkpoint that this run wrote; "": none.
  const std::string& newest() const { return newest_; }

 private:
  void complete();
  void publish(const Outcome& outcome, const std::vector<std::string>& files);
  void keep_newest(const std::string& newest);

  CheckpointParts parts_;
  std::string folder_;
  int64_t total_bytes_;                    // upper bound of the bytes of all files
  int64_t piece_bytes_;                    // bytes of all pieces
  double limit_seconds_, last_minutes_;
  StateWriter writer_;
  std::string stop_reason_, newest_;
  std::map<std::string, std::string> written_run_;  // facts of the checkpoint that is being written
  std::string whole_;                      // last complete one, or the one that the run resumed from
  int64_t writing_step_ = -1;              // step of the checkpoint being written; -1: none
  std::string failure_;                    // of this rank, before the writer started
  double waited_seconds_ = 0;              // wait of the current checkpoint for the previous one
  double last_write_seconds_ = 0;
  std::deque<Outcome> outcomes_;           // not yet returned by outcome()
};

}  // namespace blipft
