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
      : frozen_weights_(config.model.quantize == "none" ? nullptr : &format_by_name(config.model.quantize)) {}
  const Format* frozen_format(const Unit& unit, const Parameter& parameter) const override {
    return quantizable(unit, parameter) ? frozen_weights_ : nullptr;
  }

 private:
  const Format* frozen_weights_;           // of layers; null: the compute dtype
};

}  // namespace

std::unique_ptr<StoragePolicy> make_storage_policy(const Config& config) { return std::make_unique<RunPolicy>(config); }

void check_storage(const Config& config, const Model& model) {
  if (config.model.quantize == "none") return;
  const bool any = std::any_of(model.units().begin(), model.units().end(), [](const Unit* unit) {
    return std::any_of(unit->parameters().begin(), unit->parameters().end(),
                       [&](const Parameter& parameter) { return quantizable(*unit, parameter); });
  });
  BLIPFT_USER_CHECK(any, place_of(config, "model.quantize"), ": model.quantize: is ", config.model.quantize,
                    ", but no layer of the model is frozen, and quantised weights cannot be trained; name the groups "
                    "that are not to be trained in model.freeze, or set quantize: none");
}

}  // namespace blipft
