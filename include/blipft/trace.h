// Trace: the activity, timing and memory use of one rank, in an HDF5 file that stays readable even after kill -9.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "blipft/choices.h"
#include "blipft/monitor.h"

namespace blipft {

/// trace.spans
enum class SpanTracing { none, units };
BLIPFT_CHOICE_WORDS(SpanTracing, "none", "units");
/// trace.on_error
enum class TraceErrorAction { warn, stop };
BLIPFT_CHOICE_WORDS(TraceErrorAction, "warn", "stop");
struct TraceSection {
  bool enabled = true;
  SpanTracing spans = SpanTracing::units;
  std::vector<int64_t> kernels;         ///< steps whose every kernel is recorded
  int64_t fp8_every = 0;                ///< number of steps from one record of the fp8 products' factors to the next; 0: no records
  bool samples = false;                 ///< /step_samples: which samples each step trained on
  double sample_seconds = 0.2;          ///< GPU utilisation, power, clocks
  TraceErrorAction on_error = TraceErrorAction::warn;  ///< when the trace cannot be written
};

/// All times are ns on one clock aligned across ranks, 0 at the run's start.
struct StepRecord {
  int64_t step = 0, epoch = 0;
  double loss = 0, lr = 0, grad_norm = 0;
  double samples_per_second = 0, tflops = 0;    ///< for this rank's GPU, since the end of the previous step
  int64_t begin_ns = 0, end_ns = 0;
  int64_t data_wait_ns = 0;                     ///< time the step waited for its batch
  int64_t text_tokens = 0;                      ///< text rows of a sample, with padding; the mean if samples are packed
};

/// The result of one validation, identical on every rank.
struct ValidationRecord {
  int64_t step = 0;                             ///< the last step before this validation
  int64_t time_ns = 0;                          ///< end of this validation
  double loss = 0;                              ///< mean over the label tokens, or mean of the micro-batch means
  int64_t tokens = 0;                           ///< number of label tokens of all ranks
  double seconds = 0;                           ///< time that the run spent on this validation
};

/// One score of the texts that were generated at a validation, identical on every rank.
struct EvaluationRecord {
  int64_t step = 0;                             ///< the last step before this validation
  int64_t time_ns = 0;                          ///< end of this validation
  std::string metric;
  double value = 0;
  int64_t samples = 0;                          ///< number of scored samples
  double seconds = 0;                           ///< time that the run spent on generation and all scores
};

/// A sample whose prompt is answered at validations. Only rank 0 records it.
struct EvaluationSampleRecord {
  int64_t sample = 0;
  std::string picture;                          ///< file name, or name in an archive; empty: no picture
  std::string prompt, references;               ///< references: one per line
};

/// The text that was generated for a sample at a validation. Only rank 0 records it.
struct EvaluationTextRecord {
  int64_t step = 0, sample = 0, tokens = 0;
  std::string text;
};

struct SpanRecord {
  int64_t step = 0;
  int32_t micro_batch = 0;
  int32_t unit = -1;                            ///< index into /units; -1: no unit
  int32_t phase = 0;                            ///< index into /phases (names)
  int32_t stream = 0;                           ///< 0 compute, 1 communication, 2 copy, 3 host
  int64_t begin_ns = 0, end_ns = 0;
  int64_t bytes = 0;                            ///< size of the collective or copy, else 0
  double flops = 0;                             ///< operations of compute work, else 0
};

/// Statistics of one operand of a matrix's products in fp8, for one step on this rank.
struct Fp8Record {
  int64_t step = 0;
  int32_t matrix = 0;                           ///< index into /fp8_matrices
  int32_t factor = 0;                           ///< operand of y = x w^T: 0 x, 1 w, 2 dy
  double amax = 0;                              ///< the largest magnitude; NaN or infinite if an element is not finite
  int64_t elements = 0;                         ///< summed over micro-batches; 0: elements were not counted
  int64_t underflows = 0;                       ///< non-zero elements that become zero when quantized
  int64_t not_finite = 0;                       ///< elements that are infinite or NaN
};

/// One sample that a step trained on, on this rank.
struct StepSampleRecord {
  int64_t step = 0;
  int32_t micro_batch = 0;
  int32_t place = 0;                            ///< index of the sample in its micro-batch
  int64_t sample = 0;                           ///< Dataset::number_of()
};

struct MemoryRecord {
  int64_t step = 0;
  std::string phase;                            ///< before_forward, after_forward, after_backward, after_optimizer, ...
  std::string owner;                            ///< parameters, gradients, optimizer, activations, communication, ...
  int64_t time_ns = 0;
  int64_t bytes = 0;
};

struct PlanRecord {
  std::string name, owner;
  int64_t bytes = 0;                            ///< size at the predicted peak
  bool in_host = false;                         ///< true for page-locked host memory: the row goes to /host_plan
};

/// The memory that the driver reports for this process on its device, and the parts of this memory: total_bytes is the
/// sum of context, nccl, allocated and unplanned.
struct DriverMemoryRecord {
  int64_t step = -1;                            ///< the step that has finished; -1: the end of the set-up
  int64_t time_ns = 0;
  int64_t total_bytes = 0;                      ///< as the driver reports
  int64_t context_bytes = 0;                    ///< CUDA context and libraries, before NCCL and the arena
  int64_t nccl_bytes = 0;                       ///< allocated by NCCL when the communicator started
  int64_t allocated_bytes = 0;                  ///< the arena and everything else that this program has allocated
  int64_t unplanned_bytes = 0;                  ///< the rest: kernels loaded later, graphs, NCCL's later buffers, ...
  int64_t planned_bytes = 0;                    ///< the prediction of total_bytes
};

/// The writer of one rank's file. add() only appends to a queue. A writer thread writes the queue to the file and
/// flushes it at least every 0.5 s, so that a killed run loses no more than the last 0.5 s. Thread-safe.
///
/// Names and attributes must be set before the first record. After that the file accepts only rows (HDF5's SWMR mode),
/// and set_names() and set_attribute() throw Error.
/// Row sizes in the file, in bytes: StepRecord 88, SpanRecord 56, MemoryRecord 88, PlanRecord 168, DeviceRecord 80,
/// DriverMemoryRecord 64, ValidationRecord 40, KernelRecord 56, Fp8Record 48, StepSampleRecord 24, EvaluationRecord 72,
/// EvaluationTextRecord 1048, EvaluationSampleRecord 3080, and 512 for each different kernel name. Memory phases and
/// owners have at most 31 bytes, names in the plan 127. Kernel names are cut at 511 bytes, texts at 1023 bytes.
class Trace {
 public:
  virtual ~Trace() = default;
  /// Phase names must be unique. May be called again before the first record; the last call counts.
  virtual void set_names(const std::vector<std::string>& units, const std::vector<std::string>& phases,
                         const std::vector<std::string>& fp8_matrices = {}) = 0;
  virtual void set_attribute(const std::string& name, const std::string& value) = 0;
  virtual void set_attribute(const std::string& name, double value) = 0;
  /// Records a finished step. A reader that finds the step's row in the file also finds its spans there (or their loss
  /// in /dropped).
  virtual void add(const StepRecord& record, const std::vector<SpanRecord>& spans) = 0;
  virtual void add(const std::vector<SpanRecord>& records) = 0;
  virtual void add(const std::vector<MemoryRecord>& records) = 0;
  virtual void add(const std::vector<PlanRecord>& records) = 0;
  virtual void add(const DeviceRecord& record) = 0;
  virtual void add(const DriverMemoryRecord& record) = 0;
  virtual void add(const ValidationRecord& record) = 0;
  virtual void add(const std::vector<EvaluationRecord>& records) = 0;
  virtual void add(const std::vector<EvaluationSampleRecord>& records) = 0;
  virtual void add(const std::vector<EvaluationTextRecord>& records) = 0;
  virtual void add(const std::vector<KernelRecord>& records) = 0;
  virtual void add(const std::vector<Fp8Record>& records) = 0;
  virtual void add(const std::vector<StepSampleRecord>& records) = 0;
  /// Returns the reason why rows are no longer written (the disk is full, the file was removed, ...), or "" if there is
  /// none. A failure is reported here within about a second. Rows that are added after a failure are dropped.
  virtual std::string failure() const = 0;
  /// Waits until all rows are in the file, then closes it. Rethrows an error of the writer thread.
  virtual void close() = 0;
};

/// Creates `path` (one rank's file) and its folder. Throws UserError if the file cannot be written. add() never waits
/// for the disk: spans that would make the queue longer than `queue_bytes` are dropped and counted in /dropped.
std::unique_ptr<Trace> open_trace(const std::string& path, size_t queue_bytes = size_t{256} << 20);
/// Returns a trace that discards all records.
std::unique_ptr<Trace> make_null_trace();

}  // namespace blipft
