// Strategy fsdp: each rank of a shard group of N holds 1/N of each unit's parameters, gradients and optimizer states.
#pragma once

#include <array>
#include <deque>

#include "blipft/strategy.h"

namespace blipft {

class Sharded : public Strategy {
 public:
  Sharded(const StrategyContext& context, ShardedSettings settings);
  void bind() override;
  void learn_from(const Strategy& dry_run) override;
  void set_memory_limit(int64_t bytes) override {
    memory_limit_ = static_cast<int64_t>(settings_.memory_share * static_cast<double>(bytes));
    measured_ = true;
  }
  void begin_step(const Tensor& scalars, float max_norm) override;
  void begin_evaluation(size_t kind, UnitsOfEvaluation units) override;
  Tensor acquire(const Unit& unit) override { return acquire(unit, AcceptedEncodings::none); }
  UnitWeights acquire_quantized(const Unit& unit, AcceptedEncodings accepted) override;
  std::optional<Quantized> quantized(const Unit& unit, int64_t first, int64_t count) const override {
    return store_.quantized(unit, gathered_[static_cast<size_t>(unit.index)].sections, first, count);
  }
  Fp8Matrix fp8_values(const Unit& unit, int64_t first, int64_t count) const override {
    return store_.fp8_values(unit, gathered_[static_cast<size_t>(unit.index)].sections, first, count);
  }
  void release(const Unit& unit) override;
  UnitGradient gradient(const Unit& unit) override;
  void pause(const Unit& unit) override;
  void publish(const Unit& unit) override;
  void finish_backward() override;
  void warm_up(const Tensor& gathered, const Tensor& summed) override;
  int64_t warm_up_bytes() const override;

 private:
  // A unit's gathered parameters, as they are stored and as they are used.
  struct Gathered {
    std::vector<Stored> sections;          // empty: not gathered
    Tensor full;                           // in the compute dtype: the only section itself, or decoded while in use
    int64_t promised = 0;                  // number of acquires for which the buffer is reserved
    int64_t uses = 0;                      // acquires that have not been released yet
    AcceptedEncodings left = AcceptedEncodings::none;    // elements that acquire_quantized() has left out of `full`
    Event arrived;
    bool awaited = false;                  // the compute stream already waits for `arrived`
  };
  struct Pending {                         // a reduce-scatter whose buffer is still in use
    Tensor full;
    Event done;
    size_t position;                       // number of acquires before it
    int64_t acquired_bytes;                // and their bytes
  };
  // The order of acquires in one kind of pass. The first pass after construction records it; later passes prefetch in
  // this order.
  struct AcquireOrder {
    std::vector<int64_t> order;            // unit indices
    bool known = false;
  };
  void begin(AcquireOrder& course);
  bool holds() const { return settings_.hold && acquire_order_ == &training_; }
  bool keeps() const { return units_ != UnitsOfEvaluation::as_used; }
  void follow_compute(Stream stream);
  void fence();
  void take(const Unit& unit, bool kept);
  void gather(const Unit& unit);
  void move(const Unit& unit);
  void note_memory();
  bool room_for(int64_t bytes, size_t until) const;
  void prefetch();
  void promise_next();
  Tensor acquire(const Unit& unit, AcceptedEncodings left);
  Tensor usable(const Unit& unit, AcceptedEncodings left);
  void drop(const Unit& unit);
  bool reduction_is_complete(const Pending& reduction) const;
  void retire(int64_t keep);
  void retire_oldest();
  void reduce(const Unit& unit);
  void reduce_over_groups(const Unit& unit);
  bool from_host() const { return store_.weights_space() == MemorySpace::host; }
  /// Returns true if units are not sharded: this rank has all of each unit.
  bool whole() const { return store_.shards() == 1; }
  /// Returns true if gathers are copies by the device's copy engines instead of collectives.
  bool copies() const { return context_.groups.shard->direct_gathers() || (whole() && from_host()); }
  Stream gather_stream() const {
    return copies() ? context_.device->gather_stream() : context_.device->comm_stream();
  }

  ShardedSettings settings_;
  std::vector<Gathered> gathered_;         // per unit
  std::vector<Tensor> full_gradients_;     // per unit: being filled, or held over micro-batches
  std::vector<bool> reduced_;              // per unit: this step's shard of the gradient contains a contribution
  std::deque<Pending> pending_;
  int64_t pending_bytes_ = 0;
  std::vector<Event> pending_events_;
  size_t next_event_ = 0;
  Event compute_reached_, observed_, replicated_;
  bool replicating_ = false;               // this step has summed gradients over shard groups
  Tensor fence_;                           // f32 [1], which begin_step() all-reduces to wait for all ranks
  Tensor landed_;                          // i64 [1], the clock reading after a gather without observer

  AcquireOrder training_, *acquire_order_ = &training_;
  UnitsOfEvaluation units_ = UnitsOfEvaluation::as_used;
  std::array<AcquireOrder, kEvaluations> evaluations_;
  size_t position_ = 0, issued_ = 0;       // acquires done; acquires for which a gather was promised
  int64_t ahead_bytes_ = 0;                // bytes gathered, not yet acquired
  int64_t acquired_bytes_ = 0;             // bytes of all acquires of the step

  // Memory that the dry run measures in training:
  // `others_[p]` is the peak of all other memory between acquires p and p + 1.
  std::vector<int64_t> others_;
  int64_t memory_limit_ = 0;
  bool measured_ = false;                  // others_ and the limit are known
  int64_t own_bytes_ = 0;                  // gathered units and gradients in flight
};

}  // namespace blipft
