// Settings that generation takes from the run that trained the weights; see config_rules.h.
#include "blipft/config_rules.h"
#include "blipft/error.h"
#include "config/config_schema.h"

namespace blipft {

namespace {

constexpr size_t kMaxShown = 80;          // bytes of a value in a note

}  // namespace

std::vector<std::string> keys_of_a_run() {
  std::vector<std::string> names;
  for (const Key& key : config_keys())
    if (key.on_resume == OnResume::refused) names.push_back(key.full());
  return names;
}

bool on_command_line(const Config& config, const std::string& key) {
  const auto found = config.locations.find(key);
  return found != config.locations.end() &&
         (found->second.starts_with(override_location) || found->second.starts_with(smoke_override));
}

void take_from_run(Config& config, const Config& run, const std::string& key) {
  const Key& row = key_of(key);
  const std::string now = value_text(row, config), then = value_text(row, run);
  if (now == then || on_command_line(config, key)) return;
  config.notes.push_back(concat(key, "=", brief(then, kMaxShown), " as in the run of the weights (",
                                location_of(run, key), "), not ", brief(now, kMaxShown), " (", location_of(config, key),
                                "). To use another value, give ", key, "=VALUE on the command line."));
  copy_value(row, run, config);
  config.locations.erase(key);
  if (const auto found = run.locations.find(key); found != run.locations.end()) config.locations[key] = found->second;
}

}  // namespace blipft
