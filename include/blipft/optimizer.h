// Optimizer: updates a flat range of parameters.
// It declares the states that it needs for each parameter; it does not know where the range is stored.
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

/// A state that an optimizer keeps for a parameter, with one element for each element of the parameter.
struct StateSpec {
  std::string name;                        ///< "exp_avg"
  const Format* format = nullptr;
  float initial = 0;
  MemorySpace space = MemorySpace::device;
};

/// Algorithms that need whole matrices (Muon), or means of their rows and columns (AdaFactor), cannot be an Optimizer:
/// a range is a piece of a shard, which may begin and end anywhere.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Returns the states of `parameter`: every parameter has the same number of states, with the same names and in the
  /// same order, but formats may differ. `dtype` is the dtype of states that train.precision sets.
  virtual std::vector<StateSpec> states(const Parameter& parameter, DType dtype) const = 0;
  /// Computes the step's scalars (learning rate, bias corrections) for device memory; `step` counts from 1.
  virtual void scalars(int64_t step, double lr, float* values) const = 0;
  /// Returns true if update() reads states in the formats of `specs`. If false, the store decodes quantized states to
  /// f32 before the update, a piece at a time, and encodes them after it.
  virtual bool takes(const std::vector<StateSpec>& specs) const {
    return std::all_of(specs.begin(), specs.end(), [](const StateSpec& spec) { return spec.format->plain(); });
  }
  /// Returns true if weight decay applies to `parameter`.
  virtual bool decays(const Parameter& parameter) const = 0;
  /// The data of one update.
  struct Operands {
    Tensor param, master, grad;            ///< [n]; master is f32, or absent
    std::vector<Stored> state;             ///< [n] each: in formats that takes() accepted, or plain
    Tensor squares;                        ///< f32 [squares_count(n)], out, optional: see ops.h
    int64_t unit = 0, first = 0;           ///< the range is the elements from `first` on of that unit's flat buffer
    bool decays = true;                    ///< decays() of the parameters; equal for all elements
    int64_t link_bytes = 0;                ///< bytes per element of param, master and states in host memory
  };
  virtual void update(Ops& ops, const Operands& of, const Tensor& scalars, Stream stream) const = 0;
};

/// Settings of all optimizers; each optimizer uses those that apply to it.
struct OptimizerSettings {
  std::string optim = "adamw";          ///< adamw | adamw8bit | lion | sgd
  bool stochastic_rounding = false;     ///< bf16-true: updates round weights up or down at random, exact in the mean
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01, momentum = 0;
  bool decay_norms_and_biases = true;   ///< as torch.optim.AdamW does; false: weight_decay spares them, as transformers' Trainer does
};

/// Creates the optimizer `settings.optim` (see optimizer_names.h); throws UserError with the known names. `seed` is that
/// of stochastic rounding.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerSettings& settings, int64_t seed);

/// train.lr_schedule: the learning rate after the warm-up.
enum class LearningRateCurve { constant, linear, cosine };
BLIPFT_CHOICE_WORDS(LearningRateCurve, "constant", "linear", "cosine");
/// The learning rate of each step.
struct LearningRateSettings {
  double lr = 1e-5;
  LearningRateCurve lr_schedule = LearningRateCurve::constant;
  int64_t warmup_steps = 0;             ///< n: step s < n learns at lr * s / n
  double warmup_ratio = 0;              ///< warmup_steps as a share of all steps, rounded up; 0: as warmup_steps says
};

/// Learning rate of step `step` (from 0) of `total`: constant, linear or cosine after a linear warm-up of W steps:
///   s < W: lr s / W;  linear: lr (total - s) / (total - W);  cosine: lr (1 + cos(pi (s - W) / (total - W))) / 2.
/// These are transformers' get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup, and LitGPT's LambdaLR
/// followed by CosineAnnealingLR(T_max = total - W). W is warmup_steps, or ceil(total x warmup_ratio).
double learning_rate(const LearningRateSettings& schedule, int64_t step, int64_t total);

}  // namespace blipft
