// A configuration as facts and as a run file; see config_facts.h.
#include "config/config_facts.h"

#include <filesystem>

#include "agreement/record_files.h"
#include "blipft/config_rules.h"
#include "blipft/error.h"
#include "blipft/version.h"
#include "engine/placement.h"
#include "io/paths.h"

namespace blipft {

Facts config_facts(const Config& config) {
  Facts facts = {{"the program's commit", version_commit()}, {"the program's build", version_build()}};
  for (const auto& [key, value] : config_values(config))
    if (!rules_of(key).of_each_rank) facts.push_back({key, value, location_of(config, key)});
  // The paths of keys left out above may differ between ranks, but each key must be given on all ranks or on none.
  facts.push_back({"adapter.path", config.adapter.path.empty() ? "not given" : "given",
                   location_of(config, "adapter.path")});
  facts.push_back({"data.val_path", config.data.val_path.empty() ? "not given" : "given",
                   location_of(config, "data.val_path")});
  facts.push_back({"the device (parallel.device)", wants_cuda(config) ? "cuda" : "cpu",
                   location_of(config, "parallel.device")});
  return facts;
}

void check_same_config(const Config& config, const World& world) {
  if (world.size() == 1) return;
  Facts facts;
  world.run_agreeing_on_errors([&] { facts = config_facts(config); });
  compare_facts(world, facts, "start all ranks with the same program, run file and options");
}

Config with_absolute_paths(Config config) {
  for (std::string* path : {&config.adapter.path, &config.data.path, &config.data.val_path, &config.data.pictures,
                            &config.generate.path, &config.checkpoint.path, &config.output.path})
    *path = io::absolute_path(*path);
  std::error_code error;                   // it may be a name that stands for a folder elsewhere
  if (std::filesystem::exists(config.model.path, error)) config.model.path = io::absolute_path(config.model.path);
  if (config.checkpoint.resume.text.find('/') != std::string::npos)
    config.checkpoint.resume.text = io::absolute_path(config.checkpoint.resume.text);
  return config;
}

std::string run_file_text(Config config, int64_t ranks, const std::string& run_id) {
  config.parallel.devices = ranks;
  return concat(record_heading(kConfigFile, run_id),
                "\n# The effective configuration, as a run file: with another output.path it gives the same run again.\n",
                to_yaml(with_absolute_paths(config), false));
}

}  // namespace blipft
