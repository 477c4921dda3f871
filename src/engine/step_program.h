// StepProgram: everything a rank enqueues in one optimizer step, and the device memory that feeds it.
//
// The same enqueue() serves the dry run that plans memory, the eager step and the captured graph.
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
#include "engine/engine_settings.h"
#include "trace/span_recorder.h"

namespace blipft {

/// What the step program works with; nothing here is owned.
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
  PixelStatistics pixel_statistics;        ///< of the pictures, if the model reads any
  StepObserver* observer = nullptr;        ///< optional: is told of the units' phases
  Activity* activity = nullptr;            ///< optional: is told when the host waits for the device
  Fp8Products* fp8 = nullptr;              ///< optional
};

/// What runs over a text shape: a step, or an evaluation of one micro-batch.
enum class PassKind { step, evaluation };

/// What a finished step left behind, on the host.
struct StepResult {
  int64_t step = 0;
  PassKind kind = PassKind::step;
  double loss = 0, grad_norm = 0, lr = 0;  ///< of an evaluation: this rank's mean over its labels
  double labels = 0;                       ///< of an evaluation: how many these are
  double text_tokens = 0;                  ///< of a step: of all ranks' samples, without padding
  double flops = 0;                        ///< of this rank; see step_flops()
  int64_t begin_ns = 0, end_ns = 0;        ///< device clock
  std::vector<Fp8Found> fp8;               ///< of a step, of this rank: as Fp8Products::names(), kFp8Factors each
  std::string not_finite_in_fp8;           ///< Fp8Products::first_not_finite(), of all ranks
  TextShape text;
  int64_t wait_begin_ns = 0, wait_end_ns = 0;  ///< host clock (Unix time): when the trainer waited for the batch
  std::vector<int64_t> stamps;             ///< device clock, ns, of the recorded spans
};

/// Whether loss and gradient norm are.
inline bool is_finite(const StepResult& result) { return std::isfinite(result.loss) && std::isfinite(result.grad_norm); }

/// Floating-point operations of one rank's step, padding included, recomputation not.
double step_flops(const EngineSettings& settings, const Model& model, const TextShape& text);

class StepProgram {
 public:
  /// Declares its persistent memory in the arena. `text_shapes`: those that steps may have, the largest last.
  StepProgram(const StepParts& parts, std::vector<TextShape> text_shapes);
  ~StepProgram();

  /// Dry run: records a pass for each text shape, and an evaluation where the run validates. The strategy's orders of
  /// units are learnt first.
  void record_passes();
  /// After Arena::commit.
  void bind();

  /// What captures need, by all ranks, after bind() and before weights are there: opens the connections of every
  /// collective of a step by exchanging zeros. Uses `scratch` (u8 device memory) as it likes, and leaves the device idle.
  void warm_up(const Tensor& gathered, const Tensor& summed);
  /// Bytes of `gathered`; 0 if a run of these parts has nothing to warm up.
  int64_t warm_up_bytes() const;
  /// Captures the steps and evaluations of these shapes now, where steps are captured at all: none of them then runs
  /// once without a graph first. All ranks give the same shapes. Nothing runs on the device; other streams than the
  /// compute stream and those that steps fork into may be used by other threads meanwhile.
  void prepare(const std::vector<TextShape>& shapes);
  /// After prepare(), with the device idle: chooses the algorithms of matrix products that nobody has timed before, and
  /// captures the prepared steps again if there were any.
  void settle();

  /// Enqueues the copy of the batch and the step. Returns without waiting for either. The host waited for the batch
  /// from `wait_begin_ns` to `wait_end_ns`, which the result will tell.
  void launch(const HostBatch& batch, double lr, int64_t wait_begin_ns = 0, int64_t wait_end_ns = 0);
  /// The same for the evaluation of a batch of one micro-batch: forward and loss, without dropout; weights stay. The
  /// result has the mean over this rank's labels.
  void launch_evaluation(const HostBatch& batch);
  /// Whether the batch of the latest launch has left its host buffer; `wait` blocks until it has.
  bool batch_taken(bool wait);
  /// The oldest launched step's result, if it is finished (`wait`: blocks). False when there is none.
  bool finished(bool wait, StepResult& result);
  int64_t in_flight() const { return static_cast<int64_t>(launched_ - drained_); }
  /// How many steps may be launched before one must be drained.
  static constexpr int64_t kSlots = 4;

  static std::string pass_name(const TextShape& text, PassKind kind = PassKind::step);

 private:
  struct Slot;                             // pinned host memory of one launched step
  struct Program {                         // of a text shape
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
  Tensor staging_, batch_;                 // u8: where the copy stream writes, and what the step reads
  Tensor scalars_staging_, scalars_;       // f32 [kStepScalars + 1]: the same for what the host adds to a batch
  Tensor loss_, norm_square_, label_count_, loss_weights_;  // f32 [2] (loss, text tokens), [1], [1], [M]
  Tensor fp8_of_ranks_;                    // f32 [m]: Fp8Products::largest(), summed over ranks; absent where there is nothing to sum
  Tensor workspace_;                       // u8, the ops' scratch
  Tensor stamps_;                          // i64, device clock; the step's begin and end come first

  std::vector<std::unique_ptr<Slot>> slots_;
  std::unique_ptr<HostActivations> in_host_;  // null: activations stay on the device
  std::vector<Program> programs_;          // of each text shape: steps, then evaluations where the run validates
  Event staged_, unstaged_, forked_, joined_;
  uint64_t launched_ = 0, drained_ = 0;
};

}  // namespace blipft
