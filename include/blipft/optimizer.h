// Optimizer: updates a flat range of parameters.
// It declares the states it wants for each parameter and never knows where the range lives.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "blipft/choices.h"
#include "blipft/format.h"
#include "blipft/ops.h"
#include "blipft/unit.h"

namespace blipft {

/// A state that an optimizer keeps beside a parameter, element for element.
struct StateSpec {
  std::string name;                        ///< "exp_avg"
  const Format* format = nullptr;
  float initial = 0;
  Place place = Place::device;
};

/// What needs whole matrices (Muon), or means of their rows and columns (AdaFactor), is none: a range is a piece of a shard,
/// cut wherever it is.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// The states of `parameter`: as many, of the same names and in the same order, for every parameter; formats may
  /// differ. `dtype` is what train.precision keeps states in.
  virtual std::vector<StateSpec> states(const Parameter& parameter, DType dtype) const = 0;
  /// The step's scalars (learning rate, bias corrections) as they go to device memory; `step` counts from 1.
  virtual void scalars(int64_t step, double lr, float* values) const = 0;
  /// Whether update() takes states that are stored as `specs` say as they are. Else the store decodes those that are
  /// not plain to f32 before, a piece at a time, and encodes them after.
  virtual bool takes(const std::vector<StateSpec>& specs) const {
    return std::all_of(specs.begin(), specs.end(), [](const StateSpec& spec) { return spec.format->plain(); });
  }
  /// Returns true if weight decay applies to `parameter`.
  virtual bool decays(const Parameter& parameter) const = 0;
  /// What an update works on.
  struct Operands {
    Tensor param, master, grad;            ///< [n]; master is f32, or absent
    std::vector<Stored> state;             ///< [n] each: in the formats that takes() agreed to, or plain
    Tensor squares;                        ///< f32 [squares_count(n)], out, optional: see ops.h
    int64_t unit = 0, first = 0;           ///< the elements of that unit's flat buffer from `first` on
    bool decays = true;                    ///< decays() of the parameters; equal for all elements
    int64_t link_bytes = 0;                ///< of an element of param, master and states that are read from the host
  };
  virtual void update(Ops& ops, const Operands& of, const Tensor& scalars, Stream stream) const = 0;
};

/// What optimizers are made of; each takes what it has a use for.
struct OptimizerSettings {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01, momentum = 0;
  bool decay_norms_and_biases = true;      ///< false: weight_decay is not applied to them
  bool stochastic_rounding = false;        ///< of parameters in bf16 that have no masters
  uint64_t seed = 0;                       ///< of its random numbers
};

/// The optimizer of that name (optimizer_names.h); throws UserError naming the known ones.
std::unique_ptr<Optimizer> make_optimizer(const std::string& name, const OptimizerSettings& settings);

/// The learning rate of each step.
struct LearningRateSchedule {
  double lr = 0;
  LearningRateCurve curve = LearningRateCurve::constant;
  int64_t warmup_steps = 0;
  double warmup_ratio = 0;                 ///< warmup_steps as a share of all steps, rounded up; 0: as warmup_steps says
};

/// Learning rate of step `step` (from 0) of `total`: constant, linear or cosine after a linear warm-up of W steps:
///   s < W: lr s / W;  linear: lr (total - s) / (total - W);  cosine: lr (1 + cos(pi (s - W) / (total - W))) / 2.
/// These are transformers' get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup, and LitGPT's LambdaLR
/// followed by CosineAnnealingLR(T_max = total - W). W is warmup_steps, or ceil(total x warmup_ratio).
double learning_rate(const LearningRateSchedule& schedule, int64_t step, int64_t total);

}  // namespace blipft
