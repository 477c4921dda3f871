// Strategy: schedules the data movement between ranks: it brings units to the ranks that use them and gradients to the
// ranks that update them. ParameterStore defines which part of a unit a rank holds, and in which format.
//
// single, ddp: every rank holds everything; ddp all-reduces gradients while backward still runs.
// fsdp: each rank of a shard group of N ranks holds 1/N of every unit. Units are all-gathered ahead of their use and
// dropped after it. Gradients are reduce-scattered during backward; with several shard groups (hybrid sharding) they
// are then all-reduced over the replicate group.
// If weights are stored in host memory, single and ddp gather too: each rank copies a unit from its own host memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "blipft/arena.h"
#include "blipft/choices.h"
#include "blipft/comm.h"
#include "blipft/ops.h"
#include "blipft/rank_operation.h"
#include "blipft/store.h"
#include "blipft/unit.h"

namespace blipft {

/// parallel.strategy; automatic is single on one rank and ddp on several.
enum class StrategyKind { automatic, single, ddp, fsdp };
BLIPFT_CHOICE_WORDS(StrategyKind, "auto", "single", "ddp", "fsdp");
/// parallel.reshard: when fsdp frees gathered parameters.
enum class ReshardPolicy { automatic, always, step };
BLIPFT_CHOICE_WORDS(ReshardPolicy, "auto", "always", "step");

/// Receives every collective, and every update that runs during backward, for the trace. Each pair of calls encloses
/// the enqueueing in `stream`.
class CommObserver {
 public:
  virtual ~CommObserver() = default;
  using Kind = RankOperation;                      ///< gather, reduce_scatter, all_reduce or update
  virtual void begin(Kind kind, const Unit& unit, int64_t bytes, Stream stream) = 0;
  virtual void end(Kind kind, const Unit& unit, int64_t bytes, Stream stream) = 0;
};

struct StrategyContext {
  Device* device = nullptr;
  Ops* ops = nullptr;
  Groups groups;
  Arena* arena = nullptr;
  ParameterStore* store = nullptr;
  std::vector<const Unit*> units;
  CommObserver* observer = nullptr;        ///< optional
};

struct ShardedSettings {
  bool hold = false;                       ///< units stay gathered for the whole step and are reduced once per step
  double memory_share = 0;                 ///< share of the step's peak that early gathers, late reductions may fill
  int64_t prefetch_bytes = 0;              ///< limit of bytes gathered ahead of use; also of gradients being reduced
};

/// The source of an evaluation's units, for strategies that gather.
enum class UnitsOfEvaluation {
  as_used,                                 ///< each unit is gathered ahead of its use
  gather,                                  ///< the pass only gathers: all units, into memory that the arena keeps
  kept,                                    ///< units are in the memory that the latest evaluation with `gather` filled
};

class Strategy : public UnitAccess {
 public:
  explicit Strategy(StrategyContext context);
  ~Strategy() override = default;

  /// Resolves the tensors that the strategy declared. Called after Arena::commit().
  virtual void bind() {}
  /// Opens the connections that a step's collectives need: runs one collective of each kind and size in comm_stream().
  /// All ranks call it after bind(), while all gradients are zero; they stay zero. Meanwhile weights may be loaded.
  /// `gathered`: u8, at least warm_up_bytes(). `summed`: u8 zeros in memory that peers read, at least as large as the
  /// largest gradient that is not held.
  virtual void warm_up(const Tensor& gathered, const Tensor& summed) { (void)gathered, (void)summed; }
  /// Returns the size in bytes of the largest tensor that is gathered.
  virtual int64_t warm_up_bytes() const { return 0; }
  /// Copies the order of acquires that the strategy of a dry run has recorded.
  virtual void learn_from(const Strategy& dry_run) { (void)dry_run; }
  /// `bytes` is the peak of transient memory of a step. At moments at which a step uses less, the strategy may use the
  /// difference to gather earlier and to wait later for reductions. The dry run calls this after a pass in known order.
  virtual void set_memory_limit(int64_t bytes) { (void)bytes; }
  /// `scalars`: f32 [kStepScalars] with a clip coefficient of 1. Without clipping (max_norm 0), units are updated as
  /// soon as their gradients are final, in parallel with the rest of backward. An infinite max_norm scales nothing, but
  /// keeps all gradients until the norm is known, as clipping does; if the norm is not finite, nothing is updated.
  virtual void begin_step(const Tensor& scalars, float max_norm);
  virtual void begin_micro_batch(int64_t index, int64_t count);
  /// Starts a forward of one micro-batch without a backward, instead of begin_step() and begin_micro_batch().
  /// finish_backward() ends it, and nothing is updated. Evaluations of each `kind` (below kEvaluations) acquire units
  /// in one order, which is the same each time.
  virtual void begin_evaluation(size_t kind = 0, UnitsOfEvaluation units = UnitsOfEvaluation::as_used);
  static constexpr size_t kEvaluations = 3;
  /// Called after the last micro-batch: the compute stream waits for all collectives, and gathered units are dropped.
  virtual void finish_backward() = 0;
  /// Computes the gradient norm over all shards. With clipping, also runs the optimizer.
  void update(const Tensor& norm_square);

  /// Gathers the whole unit from all ranks into `full` [shard.padded]: its master weights if it has any, else its
  /// weights in the compute dtype. `scratch`: u8, at least gather_scratch_bytes(unit).
  void gather_weights(const Unit& unit, const Tensor& full, const Tensor& scratch, Stream stream);
  int64_t gather_scratch_bytes(const Unit& unit) const;

 protected:
  /// Returns a zero gradient of the unit for warm_up(): the held one, or the start of `zeros`. Reductions keep it zero.
  Tensor zero_gradient(const Unit& unit, const Tensor& zeros);
  bool last_micro_batch() const { return micro_batch_ + 1 == micro_batches_; }
  /// The gradient of `unit` is final after the work enqueued in `stream` so far: the unit may be updated.
  void gradient_final(const Unit& unit, Stream stream);
  /// Gathers `whole` from the shards of the shard group. `mine`, in device or host memory, is this rank's shard. A
  /// shard in host memory is first copied to its position in `whole`, in the stream `link`.
  void gather_shards(const Tensor& mine, MemorySpace space, const Tensor& whole, Stream link, Stream stream);
  StrategyContext context_;
  ParameterStore& store_;
  int64_t micro_batch_ = 0, micro_batches_ = 1;

 private:
  void optimize(const Unit& unit, Stream stream);
  void sum_over_shards(const Tensor& norm_square, Stream stream);
  Tensor scalars_;
  float max_norm_ = 0;
  std::vector<bool> updated_;              // per unit: already updated in this step
  Event final_, all_updated_, uploaded_;
};

/// Returns true if the strategy shards parameters over ranks: reshard, prefetch_bytes and shard_ranks apply to it.
bool cuts_parameters(StrategyKind kind);
/// Returns the number of ranks, out of `ranks`, over which the strategy shards a unit.
int64_t shard_count(StrategyKind kind, int64_t ranks);

/// Creates a strategy of `kind`, not `automatic`. `sharded` applies to fsdp and to weights in host memory.
std::unique_ptr<Strategy> make_strategy(StrategyKind kind, const StrategyContext& context,
                                        const ShardedSettings& sharded);

}  // namespace blipft
