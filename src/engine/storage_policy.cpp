// The storage policy of a run; see storage_policy.h.
#include "engine/storage_policy.h"

#include <algorithm>

#include "engine/settings.h"

namespace blipft {

namespace {

bool quantizable(const Unit& unit, const Parameter& parameter) {
  return !unit.trainable && parameter.kind == ParameterKind::layer_weight && parameter.shape.size() == 2;
}

class RunPolicy final : public StoragePolicy {
 public:
  explicit RunPolicy(const EngineSettings& config)
      : groups_(config.model.quantize_groups), weights_(place_of_data(config, OffloadedData::parameters)),
        states_(place_of_data(config, OffloadedData::optimizer)) {
    const ModelSection& model = config.model;
    if (model.quantize != WeightQuantization::none)
      format_ = &format_by_name(concat(model.quantize, model.double_quantize ? "_double" : ""));
  }
  const Format* frozen_format(const Unit& unit, const Parameter& parameter) const override {
    const bool meant = groups_.empty() || std::count(groups_.begin(), groups_.end(), unit.group().name) > 0;
    return meant && quantizable(unit, parameter) ? format_ : nullptr;
  }
  StateSpec state(const Unit&, const Parameter&, StateSpec spec) const override {
    spec.space = states_;
    return spec;
  }
  MemorySpace weights_space() const override { return weights_; }
  MemorySpace master_space() const override { return states_; }

 private:
  static MemorySpace place_of_data(const EngineSettings& config, OffloadedData data) {
    return offloads(config, data) ? MemorySpace::host : MemorySpace::device;
  }
  const Format* format_ = nullptr;         // of frozen layers' matrices; null: the compute dtype
  std::vector<std::string> groups_;        // parameter groups with this format; empty: all
  MemorySpace weights_, states_;
};

// Returns true if the parameter group has something to quantize. `group` null: any group.
bool holds_quantizable(const Model& model, const ParameterGroup* group) {
  return std::any_of(model.units().begin(), model.units().end(), [&](const Unit* unit) {
    return (!group || &unit->group() == group) &&
           std::any_of(unit->parameters().begin(), unit->parameters().end(),
                       [&](const Parameter& parameter) { return quantizable(*unit, parameter); });
  });
}

// Throws UserError if a group in model.quantize_groups has nothing to quantize.
void check_quantized_groups(const EngineSettings& config, const Model& model) {
  for (const std::string& name : config.model.quantize_groups) {
    std::string known;
    for (const ParameterGroup& group : model.groups()) known += concat(known.empty() ? "" : ", ", group.name);
    const auto group = std::find_if(model.groups().begin(), model.groups().end(),
                                    [&](const ParameterGroup& one) { return one.name == name; });
    const std::string location = location_of(config, "model.quantize_groups") + ": model.quantize_groups: ";
    BLIPFT_USER_CHECK(group != model.groups().end(), location, "found \"", name, "\", expected some of ", known);
    BLIPFT_USER_CHECK(!group->trained, location, "has ", name, ", which is trained, and quantised weights cannot be; name "
                      "it in model.freeze, or leave it out");
    BLIPFT_USER_CHECK(holds_quantizable(model, &*group), location, "has ", name, ", which holds no layers' matrices; leave it out");
  }
}

void check_quantized(const EngineSettings& config, const Model& model) {
  BLIPFT_USER_CHECK(config.model.quantize != WeightQuantization::none || config.model.quantize_groups.empty(),
                    location_of(config, "model.quantize_groups"), ": model.quantize_groups: is of model.quantize, "
                    "but quantize is none; set it, or remove quantize_groups");
  BLIPFT_USER_CHECK(config.model.quantize != WeightQuantization::none || !config.model.double_quantize,
                    location_of(config, "model.double_quantize"), ": model.double_quantize: is of model.quantize nf4 or "
                    "int8, but quantize is none; set it, or remove double_quantize");
  if (config.model.quantize == WeightQuantization::none) return;
  check_quantized_groups(config, model);
  BLIPFT_USER_CHECK(holds_quantizable(model, nullptr), location_of(config, "model.quantize"), ": model.quantize: is ", config.model.quantize,
                    ", but no layer of the model is frozen, and quantised weights cannot be trained; name the groups "
                    "that are not to be trained in model.freeze, or set quantize: none");
}

void check_offloaded(const EngineSettings& config, const Model& model) {
  if (!offloads(config, OffloadedData::optimizer) || precision_types(config).master) return;
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(config.train, config.steps.seed);
  const Parameter& any = model.units().front()->parameters().front();
  BLIPFT_USER_CHECK(!optimizer->states(any, DType::f32).empty(), location_of(config, "parallel.offload"),
                    ": parallel.offload: has optimizer, but train.optim ", config.train.optim, " without momentum "
                    "keeps no state and train.precision ", choice_word(config.train.precision), " no master "
                    "weights, so that there is nothing to offload; remove it");
}

}  // namespace

std::unique_ptr<StoragePolicy> make_storage_policy(const EngineSettings& config) {
  return std::make_unique<RunPolicy>(config);
}

void check_storage(const EngineSettings& config, const Model& model) {
  check_quantized(config, model);
  check_offloaded(config, model);
}

}  // namespace blipft
