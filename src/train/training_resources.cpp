// The resources of a training run; see training_resources.h.
#include "train/training_resources.h"

#include "blipft/version.h"
#include "engine/settings.h"

namespace blipft {

WeightContext TrainingResources::weight_context() const {
  return {.units = model().units(),
          .store = &engine->store,
          .strategy = engine->strategy.get(),
          .device = backend.device.get(),
          .ops = backend.ops.get(),
          .scratch = arena->scratch()};
}

std::map<std::string, std::string> TrainingResources::facts() const {
  const Device& device = *backend.device;
  std::map<std::string, std::string> facts{
      {"ranks", std::to_string(world.size())},
      {"strategy", groups_text(plan.memory)},
      {"device", concat(device.name(), device.code().empty() ? "" : " ", device.code())},
      {"version", version_commit()},
      {"batch_size", std::to_string(config().steps.batch_size)},
      {"samples_of_a_step", std::to_string(samples_of_a_step(config(), world.size()))}};
  if (cuts_parameters(plan.memory.strategy)) facts["reshard"] = reshard_name(plan.memory);
  return facts;
}

}  // namespace blipft
