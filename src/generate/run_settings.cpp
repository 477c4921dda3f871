// Settings of the run that trained the weights; see run_settings.h.
#include "generate/run_settings.h"

#include <filesystem>

#include "blipft/config_rules.h"
#include "generate/weight_source.h"

namespace blipft {

namespace {

// Which samples are scored is the run's choice even over the command line: see held_out.h.
constexpr const char* kSplitKey = "data.val_split_fraction";

bool is_another_folder(const std::string& folder, const std::string& than) {
  std::error_code error;
  return std::filesystem::is_directory(folder, error) && !std::filesystem::equivalent(folder, than, error);
}

}  // namespace

Config with_settings_of_run(const Config& config) {
  const WeightSource source = weight_source(config);
  const std::optional<TrainingRun> run = training_run_of(source);
  if (!run) return config;
  Config settled = config;
  for (const std::string& key : keys_of_a_run())
    if (key != kSplitKey) take_from_run(settled, run->config, key);
  const bool adapter = source.checkpoint.empty() && !source.config.adapter.path.empty();
  if (adapter && is_another_folder(run->config.model.path, config.model.path))
    take_from_run(settled, run->config, "model.path");
  return settled;
}

}  // namespace blipft
