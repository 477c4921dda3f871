// Trace: what a rank did, when, and with how much memory, in an HDF5 file that is readable even after kill -9.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "blipft/monitor.h"

namespace blipft {

/// All times are ns on one clock aligned across ranks, 0 at the run's start.
struct StepRecord {
  int64_t step = 0, epoch = 0;
  double loss = 0, lr = 0, grad_norm = 0;
  double samples_per_second = 0, tflops = 0;    ///< of this rank's GPU, since the end of the step before
  int64_t begin_ns = 0, end_ns = 0;
  int64_t data_wait_ns = 0;                     ///< time the step waited for its batch
  int64_t text_tokens = 0;                      ///< text rows of a sample, with padding; packed: their mean
};

/// A validation, the same on every rank.
struct ValidationRecord {
  int64_t step = 0;                             ///< the last step before it
  int64_t time_ns = 0;                          ///< when it had ended
  double loss = 0;                              ///< mean over the learnt tokens, or of the micro-batches' means
  int64_t tokens = 0;                           ///< learnt, of all ranks
  double seconds = 0;                           ///< that the run spent on it
};

/// A score of the texts that were generated at a validation, the same on every rank.
struct EvaluationRecord {
  int64_t step = 0;                             ///< the last step before it
  int64_t time_ns = 0;                          ///< when it had ended
  std::string metric;
  double value = 0;
  int64_t samples = 0;                          ///< that were scored
  double seconds = 0;                           ///< that the run spent on generation and all scores
};

/// A sample whose prompt is answered at validations; on rank 0.
struct EvaluationSampleRecord {
  int64_t sample = 0;
  std::string picture;                          ///< its file, or name in an archive; empty: it has none
  std::string prompt, references;               ///< the latter a line each
};

/// What a sample was answered at a validation; on rank 0.
struct EvaluationTextRecord {
  int64_t step = 0, sample = 0, tokens = 0;
  std::string text;
};

struct SpanRecord {
  int64_t step = 0;
  int32_t micro_batch = 0;
  int32_t unit = -1;                            ///< index into /units, -1: none
  int32_t phase = 0;                            ///< index into /phases (names)
  int32_t stream = 0;                           ///< 0 compute, 1 communication, 2 copy, 3 host
  int64_t begin_ns = 0, end_ns = 0;
  int64_t bytes = 0;                            ///< of collectives and copies
  double flops = 0;                             ///< of compute
};

/// A factor of a matrix's products in fp8, in a step of this rank.
struct Fp8Record {
  int64_t step = 0;
  int32_t matrix = 0;                           ///< index into /fp8_matrices
  int32_t factor = 0;                           ///< of y = x w^T: 0 x, 1 w, 2 dy
  double amax = 0;                              ///< the largest magnitude; NaN or infinite where one is not finite
  int64_t elements = 0;                         ///< over micro-batches; 0: they were not counted
  int64_t underflows = 0;                       ///< of these, not zero but with a code that is
  int64_t not_finite = 0;                       ///< of these, infinite or no number
};

/// A sample that a step trained on, on this rank.
struct StepSampleRecord {
  int64_t step = 0;
  int32_t micro_batch = 0;
  int32_t place = 0;                            ///< of the sample in its micro-batch
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
  int64_t bytes = 0;                            ///< at the predicted peak
  bool in_host = false;                         ///< page-locked host memory: a row of /host_plan
};

/// The memory that the driver reports for this process on its device, and what it is made of: total_bytes is the sum of
/// context, nccl, allocated and unplanned.
struct DriverMemoryRecord {
  int64_t step = -1;                            ///< the step that has finished, -1: the end of the set-up
  int64_t time_ns = 0;
  int64_t total_bytes = 0;                      ///< as the driver reports
  int64_t context_bytes = 0;                    ///< CUDA context and libraries, before NCCL and the arena
  int64_t nccl_bytes = 0;                       ///< taken when the communicator started
  int64_t allocated_bytes = 0;                  ///< the arena, and what else this program has allocated
  int64_t unplanned_bytes = 0;                  ///< the rest: kernels loaded later, graphs, NCCL's later buffers, ...
  int64_t planned_bytes = 0;                    ///< the prediction of total_bytes
};

/// The writer of one rank's file. add() only appends to a queue; a thread of its own writes and flushes at least every
/// 0.5 s, so that a killed run loses no more than that. Thread-safe.
///
/// Names and attributes come before the first record: from then on the file takes only rows (HDF5's SWMR mode), and
/// set_names() and set_attribute() throw Error. Size in the file, in bytes: 88 a StepRecord, 56 a SpanRecord, 88 a
/// MemoryRecord, 168 a PlanRecord, 64 a DeviceRecord, 64 a DriverMemoryRecord, 40 a ValidationRecord, 56 a
/// KernelRecord, 48 an Fp8Record, 24 a StepSampleRecord and 512 each different name of a kernel. Memory phases and owners have at most 31 bytes, planned names
/// 127; names of kernels are cut at 511. An EvaluationRecord takes 72 bytes, an EvaluationTextRecord 1048, an
/// EvaluationSampleRecord 3080: texts are cut at 1023 bytes.
class Trace {
 public:
  virtual ~Trace() = default;
  /// Phase names differ from each other. May be called again before the first record; the last call counts.
  virtual void set_names(const std::vector<std::string>& units, const std::vector<std::string>& phases,
                         const std::vector<std::string>& fp8_matrices = {}) = 0;
  virtual void set_attribute(const std::string& name, const std::string& value) = 0;
  virtual void set_attribute(const std::string& name, double value) = 0;
  /// A finished step: whoever sees its row in the file finds its spans there as well (or in /dropped).
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
  /// Why nothing is written any more: the disk is full, the file has been removed, ... Told within about a second; empty:
  /// nothing is wrong. Rows that come later are dropped.
  virtual std::string failure() const = 0;
  /// Waits until everything is in the file and closes it. Rethrows an error of the writing thread.
  virtual void close() = 0;
};

/// Creates `path` (one rank's file) and its folder. Throws UserError when it cannot be written. add() never waits for
/// the disk: spans that would make the queue longer than `queue_bytes` are dropped and counted in /dropped.
std::unique_ptr<Trace> open_trace(const std::string& path, size_t queue_bytes = size_t{256} << 20);
/// Takes everything and keeps nothing.
std::unique_ptr<Trace> make_null_trace();

}  // namespace blipft
