// Run: what a run consists of. Its start is in run_start.cpp, its steps and end in trainer.cpp.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "answers/validation_answers.h"
#include "base/start_times.h"
#include "blipft/checkpoint.h"
#include "blipft/data.h"
#include "blipft/monitor.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/content_check.h"
#include "checkpoint/resume.h"
#include "checkpoint/run_id.h"
#include "engine/engine.h"
#include "engine/run_data.h"
#include "evaluate/run_metrics.h"
#include "plan/batch_choice.h"
#include "plan/memory_plan.h"
#include "plan/step_timer.h"
#include "run/best_validation.h"
#include "run/output_folder.h"
#include "run/progress.h"
#include "run/run_faults.h"
#include "run/run_record.h"
#include "run/run_trace.h"
#include "run/smoke_folder.h"

namespace blipft {

/// A run in the order in which its parts come to life; destroyed in reverse.
class Run {
 public:
  Run(const Config& config, const World& world, Watchdog& watchdog)
      : config_(config), world_(world),
        best_(config.train.early_stopping_patience,
              config.checkpoint.keep_best == BestCriterion::none ? "loss" : config.checkpoint.keep_best.text, best_is_highest(config)),
        faults_(config_, world, watchdog) {}
  bool prepare();                          // run_start.cpp; false: the run that is asked for has ended before
  void steps();
  void finish();
  bool stopped() const { return !stop_reason_.empty(); }
  void end_early();                        // in place of finish() and the destructor, on an error of this rank

 private:
  bool claim_folders();
  void go_on_from_checkpoint();
  std::map<std::string, std::string> facts() const;
  void choose_settings(int64_t node_ranks, int64_t available);
  std::vector<CandidateTime> time_choice(const std::vector<TimedStep>& steps, int64_t available);
  std::unique_ptr<Ops> make_ops(bool times_products) const;
  void connect();
  void open_data();
  void start_loader();
  void start_answers();
  void make_backend();
  int64_t least_free_memory() const;
  void commit();
  WeightContext weight_context() const;
  std::vector<TextShape> shapes_to_prepare();
  void fill_weights();
  void restore(const WeightContext& context);
  void begin_to_check_data();
  void begin_to_check_weights();
  void check_contents(bool wait);
  void start_records();
  void start_trace(int64_t start_ns, int64_t part);
  void start_record(int64_t part);
  void announce();
  void warn_at_start() const;
  double step_seconds(const StepResult& result);
  void finished_step(const StepResult& result);
  void drain();
  void check_targets(int64_t steps);
  bool validates_after(int64_t step) const;
  void validate(int64_t step);
  void start_checkpoints();
  bool evaluates_after(int64_t step) const;
  void evaluate(int64_t step);
  void note_validation(int64_t steps, double value);
  bool checkpoint_and_stop(int64_t done);
  int64_t take_best();
  void tell_checkpoint();
  void start_kernels();
  void stop_kernels(int64_t step);
  void print_memory() const;
  std::string how_it_ends() const;
  void print_end(long long lost) const;
  void print_smoke_end() const;
  std::vector<FileToWrite> files_to_write() const;
  bool first() const { return world_.rank() == 0; }

  Config config_;                          // resolved for this world, once prepare() has begun
  const World& world_;
  std::unique_ptr<Config> asked_;          // the config as given, where train.batch_size is auto
  KeptChoice kept_;                        // what an earlier part of the run chose
  std::string choice_;                     // what was chosen, and why; "": the run file says all
  std::string timings_;                    // of the choice: BatchChoice's
  StartTimes times_;
  StopRequest stop_request_;
  std::unique_ptr<ResumePoint> resume_;    // where the run goes on from, if anywhere
  std::string run_id_;
  int64_t first_step_ = 0;
  std::string changed_;                    // keys with another value than before the resume
  Facts read_;                             // what the run reads; on rank 0
  std::string gemm_table_;                 // file of chosen algorithms of products, on GPUs
  std::unique_ptr<SmokeFolder> smoke_;     // of a trial; goes after all that is in it
  std::unique_ptr<OutputFolder> folder_;
  std::unique_ptr<Model> model_;
  RunData data_;
  std::shared_ptr<ValidationPrompts> prompts_;  // null: validations generate nothing
  std::unique_ptr<DeviceMonitor> monitor_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<KernelTracer> kernels_;  // only when the run asks for kernels
  int64_t context_bytes_ = 0;
  std::unique_ptr<Ops> ops_;
  GroupSizes group_sizes_{1};
  std::unique_ptr<CommGroups> groups_;
  std::unique_ptr<Optimizer> optimizer_;
  SpanRecorder span_recorder_;
  SpanRecorder* spans_ = nullptr;
  MemoryPlan plan_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<const SafetensorsReader> adapters_;  // that the run began with, if with any
  std::shared_ptr<const SafetensorsReader> checkpoint_;  // kept while the run is to save what it does not train
  std::unique_ptr<ContentCheck> contents_;
  std::unique_ptr<RunTrace> trace_;
  std::unique_ptr<DataLoader> loader_, validation_loader_;  // the latter where the run validates
  std::vector<TextShape> first_shapes_;    // of this rank's first steps
  std::unique_ptr<Beside> looking_ahead_;  // finds them; only where steps are captured
  std::unique_ptr<ValidationAnswers> answers_;  // where texts are generated at validations
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<RunRecord> record_;      // on rank 0
  std::unique_ptr<Checkpoints> checkpoints_;
  BestValidation best_;                    // of the validations so far
  bool best_now_ = false;                  // the last step's is the best
  std::string ends_early_;                 // why the run is done before its last step; "": it is not
  int64_t done_ = 0;                       // steps, those before a resume counted
  std::string lost_checkpoint_;            // why the last one was not written; "": it was, or none was asked for
  std::string stop_reason_;                // why the run ended before its last step; "": it did not
  double step_seconds_ = 0;                // of the last finished step
  double ready_seconds_ = 0;               // since the process began
  int64_t texts_without_target_ = 0;       // of this rank's samples so far
  int64_t texts_cut_ = 0;
  int64_t last_end_ns_ = 0;                // of the step before, on the device's clock; 0: there is none to count from
  double train_seconds_ = 0;
  std::vector<std::string> saved_;         // folders
  RunFaults faults_;                       // last: its watchdog's check asks the communicators above
};

}  // namespace blipft
