// The policy of a run; see storage_policy.h.
#include "run/storage_policy.h"

#include <algorithm>

namespace blipft {

namespace {

bool quantizable(const Unit& unit, const Parameter& parameter) {
  return !unit.trainable && parameter.kind == ParameterKind::layer_weight && parameter.shape.size() == 2;
}

class RunPolicy final : public StoragePolicy {
 public:
  explicit RunPolicy(const Config& config)
      : frozen_weights_(config.model.quantize == "none" ? nullptr : &format_by_name(config.model.quantize)),
        weights_(offloads(config, "parameters") ? Place::host : Place::device),
        states_(offloads(config, "optimizer") ? Place::host : Place::device) {}
  const Format* frozen_format(const Unit& unit, const Parameter& parameter) const override {
    return quantizable(unit, parameter) ? frozen_weights_ : nullptr;
  }
  StateSpec state(const Unit&, const Parameter&, StateSpec spec) const override {
    spec.place = states_;
    return spec;
  }
  Place weights_place() const override { return weights_; }
  Place master_place() const override { return states_; }

 private:
  const Format* frozen_weights_;           // of layers; null: the compute dtype
  Place weights_;
  Place states_;                           // of the optimizer, and of master weights
};

void check_quantized(const Config& config, const Model& model) {
  if (config.model.quantize == "none") return;
  const bool any = std::any_of(model.units().begin(), model.units().end(), [](const Unit* unit) {
    return std::any_of(unit->parameters().begin(), unit->parameters().end(),
                       [&](const Parameter& parameter) { return quantizable(*unit, parameter); });
  });
  BLIPFT_USER_CHECK(any, place_of(config, "model.quantize"), ": model.quantize: is ", config.model.quantize,
                    ", but no layer of the model is frozen, and quantised weights cannot be trained; name the groups "
                    "that are not to be trained in model.freeze, or set quantize: none");
}

void check_offloaded(const Config& config, const Model& model) {
  if (!offloads(config, "optimizer") || PrecisionTypes::of(config).master) return;
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(config.train);
  const Parameter& any = model.units().front()->parameters().front();
  BLIPFT_USER_CHECK(!optimizer->states(any, DType::f32).empty(), place_of(config, "parallel.offload"),
                    ": parallel.offload: has optimizer, but train.optim ", config.train.optim, " without momentum "
                    "keeps no state and train.precision ", precision_name(config.train.precision), " no master "
                    "weights, so that there is nothing to offload; remove it");
}

}  // namespace

std::unique_ptr<StoragePolicy> make_storage_policy(const Config& config) { return std::make_unique<RunPolicy>(config); }

void check_storage(const Config& config, const Model& model) {
  check_quantized(config, model);
  check_offloaded(config, model);
}

}  // namespace blipft
