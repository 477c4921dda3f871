// StepProgram: all work that a rank enqueues in one optimizer step, and the device memory of its inputs.
//
// One function, enqueue(), serves the dry run that plans memory, the eager step and the captured graph.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "blipft/activity.h"
#include "blipft/fp8_products.h"
#include "blipft/loading.h"
#include "blipft/model.h"
#include "blipft/strategy.h"
#include "blipft/engine_settings.h"
#include "trace/span_recorder.h"

namespace blipft {

/// The objects that a step program uses. It owns none of them.
struct StepParts {
  EngineSettings settings;
  Device* device = nullptr;
  Ops* ops = nullptr;
  Comm* comm = nullptr;
  Arena* arena = nullptr;
  Model* model = nullptr;
  Strategy* strategy = nullptr;
  const Optimizer* optimizer = nullptr;
  SpanRecorder* spans = nullptr;           ///< optional
  PixelStatistics pixel_statistics;        ///< normalization of the pictures, if the model reads any
  StepObserver* observer = nullptr;        ///< optional: gets reports of the units' phases
  Activity* activity = nullptr;            ///< optional: gets reports of waits for the device
  Fp8Products* fp8 = nullptr;              ///< optional
};

/// The kind of a pass: a training step, or an evaluation of one micro-batch.
enum class PassKind { step, evaluation };

/// The results of a finished step, on the host.
struct StepResult {
  int64_t step = 0;
  PassKind kind = PassKind::step;
  double loss = 0, grad_norm = 0, lr = 0;  ///< loss of an evaluation: this rank's mean over its labels
  double labels = 0;                       ///< of an evaluation: number of these labels
  double text_tokens = 0;                  ///< of a step: tokens of all ranks' samples, without padding
  double flops = 0;                        ///< operations of this rank; see step_flops()
  int64_t begin_ns = 0, end_ns = 0;        ///< device clock
  std::vector<Fp8Found> fp8;               ///< this rank's, of a step: kFp8Factors for each of Fp8Products::names()
  std::string not_finite_in_fp8;           ///< Fp8Products::first_not_finite() over all ranks
  TextShape text;
  int64_t wait_begin_ns = 0, wait_end_ns = 0;  ///< host clock (Unix time): the wait for the batch
  std::vector<int64_t> stamps;             ///< device clock, ns: readings of the recorded spans
};

/// True if loss and gradient norm are finite.
inline bool is_finite(const StepResult& result) { return std::isfinite(result.loss) && std::isfinite(result.grad_norm); }

/// Returns the floating-point operations of one rank's step, with padding but without recomputation.
double step_flops(const EngineSettings& settings, const Model& model, const TextShape& text);

class StepProgram {
 public:
  /// Declares its persistent memory in the arena. `text_shapes`: the shapes of all possible steps, the largest last.
  StepProgram(const StepParts& parts, std::vector<TextShape> text_shapes);
  ~StepProgram();

  /// Dry run: records a pass for each text shape, and an evaluation for each if the run validates. Before that, it lets
  /// the strategy record its order of units.
  void record_passes();
  /// To be called after Arena::commit.
  void bind();

  /// Opens the connections of all collectives of a step by exchanging zeros, because a capture cannot open them. All
  /// ranks must call it, after bind() and before weights are loaded. Overwrites `gathered` and `summed` (device memory)
  /// and leaves the device idle.
  void warm_up(const Tensor& gathered, const Tensor& summed);
  /// Returns the bytes of `gathered`; 0 if there is nothing to warm up.
  int64_t warm_up_bytes() const;
  /// If the settings use CUDA graphs, captures the steps and evaluations of `shapes` now. Otherwise the first pass of a
  /// shape would run without a graph. `shapes` must be equal on all ranks. Nothing runs on the device; meanwhile other
  /// threads may use all streams except the compute stream and those that steps fork into.
  void prepare(const std::vector<TextShape>& shapes);
  /// Times and chooses the algorithms of matrix products that have none yet. If there were any, captures the prepared
  /// steps again. To be called after prepare(), while the device is idle.
  void tune_deferred_products();

  /// Enqueues the copy of the batch and the step. Returns without waiting for either. The result will contain
  /// `wait_begin_ns` and `wait_end_ns`, between which the host waited for the batch.
  void launch(const HostBatch& batch, double lr, int64_t wait_begin_ns = 0, int64_t wait_end_ns = 0);
  /// Enqueues the evaluation of a batch of one micro-batch: forward and loss, without dropout and without an update.
  /// The loss of the result is the mean over this rank's labels.
  void launch_evaluation(const HostBatch& batch);
  /// Returns true if the batch of the latest launch has been copied from its host buffer. With `wait`, waits for the
  /// copy.
  bool batch_copied(bool wait);
  /// Drains the oldest launched step into `result`. Returns false if there is none, or if it is not finished and `wait`
  /// is false. With `wait`, waits until it is finished.
  bool finished(bool wait, StepResult& result);
  int64_t in_flight() const { return static_cast<int64_t>(launched_ - drained_); }
  /// Maximum number of steps that are launched and not yet drained.
  static constexpr int64_t kSlots = 4;

  static std::string pass_name(const TextShape& text, PassKind kind = PassKind::step);

 private:
  struct Slot;                             // pinned host memory of one launched step
  struct Program {                         // the pass of a text shape
    TextShape text;
    PassKind kind = PassKind::step;
    std::unique_ptr<Graph> graph;
    bool warm = false;                     // has run once without a graph
  };
  void begin_pass(const TextShape& text, PassKind kind);
  void enqueue(const TextShape& text, PassKind kind);
  void enqueue_step(const TextShape& text);
  void enqueue_evaluation(const TextShape& text);
  StepContext step_context() const;
  Program& program_of(const TextShape& text, PassKind kind);
  bool warms_up() const;
  std::unique_ptr<Graph> capture(const Program& program);
  MicroBatch micro_batch(int64_t m, const TextShape& text, PassKind kind) const;
  void enqueue_loss_weights(const TextShape& text);
  void mark_begin();
  void mark_end();
  void sum_results();
  void copy_results(const Slot& slot);
  void read_fp8(const char* from, StepResult& result) const;
  BatchLayout layout(const TextShape& text, PassKind kind) const;
  Slot& next_slot(const HostBatch& batch, PassKind kind);
  void copy_in(const HostBatch& batch, const Slot& slot);
  void run(const HostBatch& batch, PassKind kind, Slot& slot);
  std::unique_ptr<Activity::Scope> waiting(bool waits) const;

  StepParts parts_;
  std::vector<TextShape> text_shapes_;
  int64_t micro_batches_, batch_size_;
  Tensor staging_, batch_;                 // u8: written by the copy stream; read by the step
  Tensor scalars_staging_, scalars_;       // f32 [kStepScalars + 1], likewise: scalars that the host sends with a batch
  Tensor loss_, norm_square_, label_count_, loss_weights_;  // f32 [2] (loss, text tokens), [1], [1], [M]
  Tensor fp8_of_ranks_;                    // f32 [m]: Fp8Products::largest(), summed over ranks; empty if unused
  Tensor workspace_;                       // u8, the ops' scratch
  Tensor stamps_;                          // i64, device clock; begin and end of the step first

  std::vector<std::unique_ptr<Slot>> slots_;
  std::unique_ptr<HostActivations> in_host_;  // null: activations stay on the device
  std::vector<Program> programs_;          // one per text shape: steps, then evaluations if the run validates
  Event staged_, unstaged_, forked_, joined_;
  uint64_t launched_ = 0, drained_ = 0;
};

}  // namespace blipft
