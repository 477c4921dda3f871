// Strategy: what moves when between the ranks: units on their way to where they are used, gradients on their way to who
// updates. What a rank holds, and in which format, is the ParameterStore's.
//
// single, ddp: every rank holds everything; ddp all-reduces gradients while backward still runs.
// fsdp: each rank of a shard group of N holds 1/N of every unit; units are all-gathered ahead of use and dropped after
// it, gradients are reduce-scattered during backward, and summed over the replicate group where there are several shard
// groups (hybrid sharding).
// Where weights lie in the host, single and ddp gather too: each unit from the rank's own host memory, ahead of use.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "blipft/arena.h"
#include "blipft/choices.h"
#include "blipft/comm.h"
#include "blipft/doing.h"
#include "blipft/ops.h"
#include "blipft/store.h"
#include "blipft/unit.h"

namespace blipft {

/// Told of every collective and of updates beside backward, for the trace. Calls bracket the enqueueing in `stream`.
class CommObserver {
 public:
  virtual ~CommObserver() = default;
  using Kind = Doing;                      ///< gather, reduce_scatter, all_reduce or update
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
  double memory_share = 0;                 ///< share of the step's peak to be filled by early gathers, late reductions
  int64_t prefetch_bytes = 0;              ///< gathered ahead of use, at most; likewise gradients being reduced
};

/// Where an evaluation has its units from, under a strategy that gathers.
enum class UnitsOfEvaluation {
  as_used,                                 ///< each is gathered for its use, ahead of it
  gather,                                  ///< nothing is used: all are gathered, into memory that the arena keeps
  kept,                                    ///< they lie where the latest evaluation with `gather` has left them
};

class Strategy : public UnitAccess {
 public:
  explicit Strategy(StrategyContext context);
  ~Strategy() override = default;

  /// After Arena::commit.
  virtual void bind() {}
  /// Opens the connections that a step's collectives need, with one collective of each kind and size in comm_stream().
  /// All ranks call it after bind(), when all gradients are zero, and they stay so. Weights may be loaded meanwhile.
  /// `gathered`: u8, at least warm_up_bytes(). `summed`: u8, zeros, in memory that peers read, at least as large as the
  /// largest gradient that is not held.
  virtual void warm_up(const Tensor& gathered, const Tensor& summed) { (void)gathered, (void)summed; }
  /// Bytes of the largest tensor that is gathered.
  virtual int64_t warm_up_bytes() const { return 0; }
  /// Takes over what the strategy of a dry run has learnt (the order of acquires).
  virtual void learn_from(const Strategy& dry_run) { (void)dry_run; }
  /// Transient bytes that a step takes anyway: where it takes less, the strategy may use the rest, to gather earlier
  /// and to leave reductions more time. The dry run tells, after a pass that knew the order.
  virtual void set_memory_limit(int64_t bytes) { (void)bytes; }
  /// `scalars` f32 [kStepScalars] with a clip coefficient of 1. Without clipping (max_norm 0) units are updated as soon
  /// as their gradients are final, beside the rest of backward. An infinite max_norm scales nothing, but holds all
  /// gradients until the norm is known, as clipping does; where it is not finite, nothing is updated.
  virtual void begin_step(const Tensor& scalars, float max_norm);
  virtual void begin_micro_batch(int64_t index, int64_t count);
  /// In place of both: a forward of one micro-batch without a backward; finish_backward() ends it, and nothing is
  /// updated. Evaluations of a `kind`, below kEvaluations, acquire units in an order of their own, the same each time.
  virtual void begin_evaluation(size_t kind = 0, UnitsOfEvaluation units = UnitsOfEvaluation::as_used);
  static constexpr size_t kEvaluations = 3;
  /// After the last micro-batch: the compute stream waits for all collectives, gathered units are dropped.
  virtual void finish_backward() = 0;
  /// Gradient norm over all shards; with clipping, that and the optimizer.
  void update(const Tensor& norm_square);

  /// The whole unit from all ranks, into `full` [shard.padded]: its master weights where there are, else its weights in
  /// the compute dtype. `scratch` u8, at least gather_scratch_bytes(unit).
  void gather_weights(const Unit& unit, const Tensor& full, const Tensor& scratch, Stream stream);
  int64_t gather_scratch_bytes(const Unit& unit) const;

 protected:
  /// The unit's part of the gradients, for warm_up(): the held one, else the start of `zeros`, which sums keep zero.
  Tensor zero_gradient(const Unit& unit, const Tensor& zeros);
  bool last_micro_batch() const { return micro_batch_ + 1 == micro_batches_; }
  /// The gradient of `unit` is final once `stream` has come here: the unit may be updated.
  void gradient_final(const Unit& unit, Stream stream);
  /// `whole` out of the shards of the shard group, of which `mine`, in device or host memory, is this rank's. One from
  /// the host comes through the link first, in `link`, to its place in `whole`.
  void gather_shards(const Tensor& mine, Place place, const Tensor& whole, Stream link, Stream stream);
  StrategyContext context_;
  ParameterStore& store_;
  int64_t micro_batch_ = 0, micro_batches_ = 1;

 private:
  void optimize(const Unit& unit, Stream stream);
  void sum_over_shards(const Tensor& norm_square, Stream stream);
  Tensor scalars_;
  float max_norm_ = 0;
  std::vector<bool> updated_;              // per unit, in this step
  Event final_, all_updated_, uploaded_;
};

/// Returns true if the strategy shards parameters over ranks: reshard, prefetch_bytes and shard_ranks apply to it.
bool cuts_parameters(StrategyKind kind);
/// Returns the number of ranks, out of `ranks`, over which the strategy shards a unit.
int64_t shard_count(StrategyKind kind, int64_t ranks);

/// Makes the strategy `kind`, which is not automatic. `sharded` is for fsdp.
std::unique_ptr<Strategy> make_strategy(StrategyKind kind, const StrategyContext& context,
                                        const ShardedSettings& sharded);

}  // namespace blipft
