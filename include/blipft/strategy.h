// Strategy: who holds which shard of parameters, gradients and optimizer state, and what moves when.
//
// single, ddp: every rank holds everything; ddp all-reduces gradients while backward still runs.
// fsdp: each rank holds 1/N of every unit; units are all-gathered ahead of use and dropped after it, gradients are
// reduce-scattered during backward.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "blipft/arena.h"
#include "blipft/comm.h"
#include "blipft/config.h"
#include "blipft/ops.h"
#include "blipft/optimizer.h"
#include "blipft/unit.h"

namespace blipft {

/// Dtypes that follow from train.precision.
struct PrecisionTypes {
  DType compute, gradient, state;
  bool master;                             ///< f32 master weights beside the compute weights
  static PrecisionTypes of(Precision precision);
};

/// What this rank keeps of a unit: elements [first, first + count) of the flat buffer padded to `padded`.
struct Shard {
  int64_t first = 0, count = 0, padded = 0;
  int64_t offset = 0;                      ///< where the shard starts in the rank's contiguous buffers
  int64_t squares = 0;                     ///< where its sums of squares (ops.h) start among those of all
};

/// Told of every collective and of updates beside backward, for the trace. Calls bracket the enqueueing in `stream`.
class CommObserver {
 public:
  virtual ~CommObserver() = default;
  enum class Kind { gather, reduce_scatter, all_reduce, update };
  virtual void begin(Kind kind, const Unit& unit, int64_t bytes, Stream stream) = 0;
  virtual void end(Kind kind, const Unit& unit, int64_t bytes, Stream stream) = 0;
};

struct StrategyContext {
  Device* device = nullptr;
  Ops* ops = nullptr;
  Comm* comm = nullptr;
  Arena* arena = nullptr;
  std::vector<const Unit*> units;
  PrecisionTypes types{};
  const Optimizer* optimizer = nullptr;
  CommObserver* observer = nullptr;        ///< optional
};

struct ShardedSettings {
  bool hold = false;                       ///< units stay gathered for the whole step and are reduced once per step
  double memory_share = 0;                 ///< share of the step's peak to be filled by early gathers, late reductions
  int64_t prefetch_bytes = 0;              ///< gathered ahead of use, at most; likewise gradients being reduced
};

class Strategy : public UnitAccess {
 public:
  /// Lays the units out and declares persistent memory (parameters, gradients, optimizer state) in the arena.
  Strategy(StrategyContext context, int64_t shards);
  ~Strategy() override = default;

  /// After Arena::commit: real addresses, zeroed gradients and optimizer state.
  virtual void bind();
  /// Takes over what the strategy of a dry run has learnt (the order of acquires).
  virtual void learn_from(const Strategy& dry_run) { (void)dry_run; }
  /// Transient bytes that a step takes anyway: where it takes less, the strategy may use the rest, to gather earlier
  /// and to leave reductions more time. The dry run tells, after a pass that knew the order.
  virtual void set_memory_limit(int64_t bytes) { (void)bytes; }
  /// `scalars` f32 [kStepScalars] with a clip coefficient of 1. Without clipping (max_norm 0) units are updated as soon
  /// as their gradients are final, beside the rest of backward.
  virtual void begin_step(const Tensor& scalars, float max_norm);
  virtual void begin_micro_batch(int64_t index, int64_t count);
  /// After the last micro-batch: the compute stream waits for all collectives, gathered units are dropped.
  virtual void finish_backward() = 0;
  /// Gradient norm over all ranks; with clipping, that and the optimizer.
  void update(const Tensor& norm_square);

  const Shard& shard(const Unit& unit) const { return shards_[static_cast<size_t>(unit.index)]; }
  int64_t shard_count() const { return shard_count_; }   ///< ranks that a unit is cut over
  /// This rank's part of the unit: [shard.count], compute dtype; and f32 master or absent (frozen units have none).
  Tensor parameters(const Unit& unit) const;
  Tensor masters(const Unit& unit) const;
  /// Dtype of the unit's most exact weights: f32 where there are masters, else the compute dtype.
  DType weight_dtype(const Unit& unit) const;
  /// Gradient of this rank's part after finish_backward(), before update().
  Tensor gradients(const Unit& unit) const;
  /// Optimizer state `i` of this rank's part.
  Tensor state(const Unit& unit, size_t i) const;
  /// The whole unit from all ranks, into `full` [padded]: its master weights where there are, else its parameters.
  void gather_weights(const Unit& unit, const Tensor& full, Stream stream);

  int64_t trainable_elements() const { return trainable_; }   ///< of this rank's shards, padding included

 protected:
  bool last_micro_batch() const { return micro_batch_ + 1 == micro_batches_; }
  /// The gradient of `unit` is final once `stream` has come here: the unit may be updated.
  void gradient_final(const Unit& unit, Stream stream);
  Tensor part(const Tensor& buffer, const Unit& unit) const;
  StrategyContext context_;
  int64_t shard_count_;
  int64_t micro_batch_ = 0, micro_batches_ = 1;
  Tensor parameters_, masters_, gradients_;               // contiguous; trainable units first
  std::vector<Tensor> states_;
  Tensor squares_;                                        // f32, of the trainable units' gradients

 private:
  void optimize(const Unit& unit, Stream stream);
  std::vector<Shard> shards_;
  Tensor scalars_;
  float max_norm_ = 0;
  std::vector<bool> updated_;              // per unit, in this step
  Event final_, all_updated_;
  int64_t trainable_ = 0, total_ = 0;
};

/// `name`: single, ddp or fsdp (the factory table). `sharded` is for fsdp.
std::unique_ptr<Strategy> make_strategy(const std::string& name, const StrategyContext& context,
                                        const ShardedSettings& sharded);

}  // namespace blipft
