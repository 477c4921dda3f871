// Strategies single and ddp: every rank holds all parameters, gradients and optimizer states.
#pragma once

#include "blipft/strategy.h"

namespace blipft {

class Replicated : public Strategy {
 public:
  explicit Replicated(const StrategyContext& context);
  Tensor acquire(const Unit& unit) override { return acquire(unit, AcceptedEncodings::none); }
  UnitWeights acquire_quantized(const Unit& unit, AcceptedEncodings accepted) override;
  std::optional<Quantized> quantized(const Unit& unit, int64_t first, int64_t count) const override;
  Fp8Matrix fp8_values(const Unit& unit, int64_t first, int64_t count) const override;
  void release(const Unit& unit) override;
  void begin_micro_batch(int64_t index, int64_t count) override;
  UnitGradient gradient(const Unit& unit) override;
  void publish(const Unit& unit) override;
  void finish_backward() override;
  void warm_up(const Tensor& gathered, const Tensor& summed) override;

 private:
  struct Decoded {                         // a unit that is stored in another format than the compute dtype
    Tensor flat;
    int64_t uses = 0;
    AcceptedEncodings left = AcceptedEncodings::none;    // elements left out by acquire_quantized()
  };
  Tensor acquire(const Unit& unit, AcceptedEncodings left);
  std::vector<Stored> stored(const Unit& unit) const;

  std::vector<Decoded> decoded_;           // per unit
  std::vector<bool> used_;                 // per unit: true if gradient() was called in this micro-batch
  Event ready_, done_;
  bool reducing_ = false;
};

}  // namespace blipft
