// Checkpoints: when a run writes one, and how it becomes whole: all ranks write a file of their own into
// step-N.partial/, then rank 0 writes the index and gives the folder its name.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "agreement/disk_room.h"
#include "base/start_times.h"
#include "blipft/comm.h"
#include "blipft/config.h"
#include "checkpoint/state_writer.h"
#include "liveness/stop_request.h"
#include "weights/weights.h"

namespace blipft {

/// What CheckpointParts::run calls the step of the best validation: with checkpoint.keep_best its checkpoint stays.
constexpr const char* kBestStep = "best_step";

/// Of the files of all ranks together.
int64_t checkpoint_bytes(const Units& units, const ParameterStore& store);

/// Page-locked host memory of a rank for `state_bytes` that it holds, as checkpoint.host_gib says; 0 for a run that
/// writes no checkpoints but when it is stopped. `machine_ranks`: that share the machine's memory.
int64_t checkpoint_staging_bytes(const Config& config, int64_t state_bytes, int64_t machine_ranks);

/// "checkpoints of 39.1 GiB every 100 steps, ...": what a run will write, what it takes of the host, and how long a step
/// waits for it; "" for a run that writes none but when it is stopped.
std::string checkpoints_text(const Config& config, const Units& units, const ParameterStore& store, int64_t ranks,
                             int64_t machine_ranks);

/// What checkpoints of `bytes` each still take: the kept ones and one on its way, less what earlier ones of `run_id` hold
/// already, of which keeping removes some. A run that writes none but when it is stopped can do without.
FileToWrite checkpoints_to_write(const Config& config, int64_t bytes, const std::string& run_id);

struct CheckpointParts {
  const Config* config = nullptr;
  const World* world = nullptr;
  const StartTimes* times = nullptr;
  const StopRequest* stop = nullptr;
  WeightContext weights;
  int64_t replica = 0;                     ///< which of the ranks that hold the same shards this one is
  std::map<std::string, std::string> run;  ///< see StateIndex
  std::string resumed;                     ///< the checkpoint that the run goes on from; "": none
  std::string gemm_table;                  ///< file with the chosen algorithms of products, copied; "": none
};

class Checkpoints {
 public:
  explicit Checkpoints(CheckpointParts parts);
  /// After `done` steps, of which the last took about `step_seconds`: whether a checkpoint is to be written now. Called
  /// by all ranks after every step. A checkpoint whose last byte has come to the disk meanwhile becomes whole.
  bool due(int64_t done, double step_seconds);
  /// Why the run is to end with that checkpoint ("SIGUSR1", "SIGINT", "checkpoint.time_limit"); "": it goes on.
  const std::string& stop_reason() const { return stop_reason_; }
  /// Begins to write what the ranks hold after `done` steps; the device is idle.
  void write(int64_t done);
  /// What became known of the run meanwhile; of checkpoints that are written from now on.
  void add_to_run(const std::map<std::string, std::string>& facts);
  /// Waits for the last one, if it is still being written. Throws what went wrong with it.
  void finish();

  /// The next checkpoint that has become whole or has failed and was not asked for yet; false: none.
  struct Outcome {
    int64_t step = 0, bytes = 0;           ///< of all ranks
    double pause_seconds = 0, write_seconds = 0;  ///< of the slowest rank
    double waited_seconds = 0;                    ///< of the pause, for the checkpoint before to be on the disk
    std::string folder, failure;           ///< failure "": it is whole
  };
  bool outcome(Outcome& outcome);
  /// Where the checkpoint after so many steps lies, or would lie.
  std::string folder_of(int64_t step) const;
  /// The last whole one of this run; "": none.
  const std::string& newest() const { return newest_; }

 private:
  void complete();
  void publish(const Outcome& outcome, const std::vector<std::string>& files);
  void keep_newest(const std::string& newest);

  CheckpointParts parts_;
  std::string folder_;
  int64_t total_bytes_;                    // of all files, at most
  int64_t piece_bytes_;                    // of all pieces
  double limit_seconds_, last_minutes_;
  StateWriter writer_;
  std::string stop_reason_, newest_;
  std::map<std::string, std::string> written_run_;  // of the one that is on its way
  std::string whole_;                      // the last whole one, also one that the run went on from
  int64_t writing_step_ = -1;              // -1: none is on its way
  std::string failure_;                    // of this rank, before the writer began
  double waited_seconds_ = 0;              // of the checkpoint under way, for the one before
  double last_write_seconds_ = 0;
  std::deque<Outcome> outcomes_;           // that nobody has asked for yet
};

}  // namespace blipft
