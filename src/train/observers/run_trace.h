// RunTrace: an observer that writes a rank's trace file.
#pragma once

#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "blipft/trace.h"
#include "loading/step_order.h"
#include "trace/device_sampler.h"
#include "trace/energy.h"
#include "trace/trace_clock.h"
#include "train/observers/training_observer.h"
#include "train/training_resources.h"

namespace blipft {

class RunTrace final : public TrainingObserver {
 public:
  /// Opens the file, writes the facts of the run, and starts to sample the device. `start_ns` is unix_ns() at the run's
  /// start, equal on all ranks. `part` is the number of this part of the run: next_part() if it resumes from a
  /// checkpoint. `resources` must outlive the trace.
  RunTrace(const TrainingResources& resources, int64_t start_ns, int64_t part);
  static std::string path(const Config& config, int64_t part, int64_t rank);
  /// Returns the part number of a resumed run: one more than the highest of any rank in the output folder, as rank 0
  /// sees it. Called by all ranks, which get the same result. Throws AgreedError if the folder cannot be read.
  static int64_t next_part(const Config& config, const World& world);
  /// Returns the path of this rank's file.
  std::string path() const { return path(r_.config(), part_, r_.world.rank()); }
  void step(const StepEvent& event) override;
  /// Records the owners' memory at the named moments of a pass and at its peak, with the gaps between their tensors,
  /// and the driver's figures.
  void memory(const MemoryEvent& event) override;
  /// Records the memory that the owners hold at a moment outside of any pass, after `step` (-1: the set-up), at which
  /// the run used `bytes` bytes of scratch memory.
  void scratch_memory(int64_t step, const std::string& moment, int64_t bytes);
  /// Records the memory of this process that the driver reports after `step` (-1: the set-up), if it reports any.
  void driver_memory(int64_t step);
  void validation(const ValidationEvent& event) override;
  /// Records the scores, and on rank 0 the generated texts too.
  void evaluation(const EvaluationEvent& event) override;
  /// Records the kernels of a step, with times of the system clock.
  void kernels(int64_t step, std::vector<KernelRecord> records);
  /// Returns the largest memory of this process that the driver reported, 0 if it reports none; and the prediction.
  int64_t measured_bytes() const { return measured_bytes_; }
  int64_t planned_bytes() const;
  /// Returns the approximate bytes of all ranks' files for `steps` steps, without device samples (80 bytes each).
  static int64_t bytes(const Config& config, const MemoryPlan& plan, int64_t steps, int64_t steps_per_epoch);
  /// Returns the text of the energy that all ranks' GPUs and machines have used since this object was made. Called by all
  /// ranks, before close().
  std::string energy();
  /// Ends the sampling and closes the file. Does not throw if the trace cannot be written; see failure().
  void close();
  /// Returns why the file is incomplete; "" if no failure is known. The first failure is printed as a warning, or, if
  /// trace.on_error is stop, thrown as a UserError by the constructor or by step().
  const std::string& failure() const { return failure_; }

 private:
  int64_t now_ns() const;
  void sample(DeviceRecord record);
  void note_memory(int64_t step, const std::string& moment, const MemoryUse& use);
  void note_run();
  void note_versions();
  std::vector<StepSampleRecord> samples_of(int64_t step) const;
  std::unique_ptr<Trace> open();
  void fail(const std::string& why, bool may_stop);
  const TrainingResources& r_;
  const int64_t start_ns_, part_;
  std::string failure_;
  std::unique_ptr<Trace> trace_;
  int64_t samples_ = 0;                    // samples of a step of this rank
  std::unique_ptr<const StepOrder> order_;  // null without trace.samples
  DeviceClock clock_;
  bool samples_written_ = false;              // true if /evaluation_samples is written
  int64_t clock_ns_ = 0;                   // the last time at which the sampler's thread measured the clock
  int64_t measured_bytes_ = 0;
  int64_t steps_ = 0;
  double tokens_ = 0;                      // of all ranks
  std::mutex energy_mutex_;                // guards the next three members
  std::unique_ptr<PackageEnergy> packages_;  // on the first rank of a machine
  double first_gpu_joules_ = std::numeric_limits<double>::quiet_NaN();
  DeviceRecord newest_;
  std::unique_ptr<DeviceSampler> sampler_;  // last: its thread uses the members above
};

}  // namespace blipft
