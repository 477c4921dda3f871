// RunRecord: writes config.yaml, log.txt and metrics.jsonl of a run, on rank 0; see record_files.h and docs/traces.md.
#pragma once

#include <memory>
#include <string>

#include "agreement/record_files.h"
#include "train/observers/training_observer.h"

namespace blipft {

class RunRecord final : public TrainingObserver {
 public:
  struct Part {
    std::string run_id;
    int64_t ranks = 1, samples_per_step = 0;  ///< samples_per_step: of all ranks together
    int64_t number = 0, first_step = 0, total_steps = 0;
    bool resumed = false;
    std::string strategy;
  };
  /// Creates the three files. In a resumed run it continues them, and first cuts off the rows of metrics.jsonl about
  /// steps that will be repeated. If a file cannot be written, the constructor and step() print a warning, or throw
  /// UserError if trace.on_error is stop. Called on rank 0, after all other checks of the run.
  RunRecord(const Config& config, const Part& part);
  ~RunRecord() override;

  void step(const StepEvent& event) override;
  void validation(const ValidationEvent& event) override;
  void evaluation(const EvaluationEvent& event) override;
  void end(const EndEvent& event) override;
  /// Writes the waiting lines; takes at most some seconds.
  void close() { metrics_.reset(); }

 private:
  template <class Body>
  void keep(const Body& body);
  void fail(const std::string& why);
  void begin_metrics(const RecordFolder& folder);

  const Config& config_;
  Part part_;
  std::unique_ptr<io::LineFile> metrics_;  // null if metrics.jsonl is not written
  bool reported_loss_ = false;                      // true after lost lines were reported
};

}  // namespace blipft
