// fsdp: each rank holds 1/N of every unit's parameters, gradients and optimizer state.
#pragma once

#include <deque>

#include "blipft/strategy.h"

namespace blipft {

class Sharded : public Strategy {
 public:
  Sharded(const StrategyContext& context, ShardedSettings settings);
  void learn_from(const Strategy& dry_run) override;
  void begin_step() override;
  Tensor acquire(const Unit& unit) override;
  void release(const Unit& unit) override;
  UnitGradient gradient(const Unit& unit) override;
  void publish(const Unit& unit) override;
  void finish_backward() override;

 private:
  // A unit's gathered parameters. Uses count the acquires that the buffer is already promised to.
  struct Gathered {
    Tensor full;
    int64_t promised = 0;
    Event arrived;
    bool awaited = false;                  // the compute stream already waits for it
  };
  struct Pending {                         // a reduce-scatter whose buffer is still in use
    Tensor full;
    Event done;
  };
  void gather(const Unit& unit);
  void prefetch();
  void drop(const Unit& unit);
  void retire(size_t keep);
  void reduce(const Unit& unit);
  bool last_micro_batch() const { return micro_batch_ + 1 == micro_batches_; }

  ShardedSettings settings_;
  std::vector<Gathered> gathered_;         // per unit
  std::vector<Tensor> full_gradients_;     // per unit: being filled, or held over micro-batches
  std::vector<int64_t> filled_since_;      // per unit: micro-batch that took the full gradient's buffer
  std::deque<Pending> pending_;
  std::vector<Event> pending_events_;
  size_t next_event_ = 0;
  Event compute_reached_;

  // The order of acquires, learnt in the first pass after construction, is what later passes prefetch along.
  std::vector<int64_t> order_;             // unit indices
  bool order_known_ = false;
  size_t position_ = 0, issued_ = 0;       // acquires done; acquires that a gather is promised to
  int64_t ahead_bytes_ = 0;                // gathered, not yet acquired
};

}  // namespace blipft
