// single and ddp: every rank holds all parameters, gradients and optimizer state.
#pragma once

#include "blipft/strategy.h"

namespace blipft {

class Replicated : public Strategy {
 public:
  explicit Replicated(const StrategyContext& context);
  Tensor acquire(const Unit& unit) override { return parameters(unit); }
  void release(const Unit&) override {}
  UnitGradient gradient(const Unit& unit) override { return {gradients(unit), micro_batch_ > 0}; }
  void publish(const Unit& unit) override;
  void finish_backward() override;

 private:
  Event ready_, done_;
  bool reducing_ = false;
};

}  // namespace blipft
