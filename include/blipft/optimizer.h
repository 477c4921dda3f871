// Optimizer: updates a flat range of parameters.
// It declares its state per element and never knows where the range lives.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "blipft/config.h"
#include "blipft/ops.h"

namespace blipft {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Names of the state tensors, each with one element per parameter element ("exp_avg", ...).
  virtual std::vector<std::string> state_names() const = 0;
  /// The step's scalars (learning rate, bias corrections) as they go to device memory; `step` counts from 1.
  virtual void scalars(int64_t step, double lr, float* values) const = 0;
  /// What an update works on.
  struct Operands {
    Tensor param, master, grad;            ///< [n]; master is f32, or absent
    std::vector<Tensor> state;             ///< [n] each
    Tensor squares;                        ///< f32 [squares_count(n)], out, optional: see ops.h
  };
  virtual void update(Ops& ops, const Operands& of, const Tensor& scalars, Stream stream) const = 0;
  /// Bytes read and written per element, for the bandwidth figure.
  virtual double bytes_per_element(DType param, DType grad, DType state, bool master) const = 0;
};

/// By train.optim; throws UserError naming the known ones.
std::unique_ptr<Optimizer> make_optimizer(const TrainSection& train);

/// Learning rate of step `step` (from 0) of `total`: constant, linear or cosine after a linear warm-up.
double learning_rate(const TrainSection& train, int64_t step, int64_t total);

}  // namespace blipft
