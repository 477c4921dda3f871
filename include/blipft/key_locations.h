// KeyLocations: where the keys of a run file were set, for messages.
#pragma once

#include <map>
#include <string>

namespace blipft {

struct KeyLocations {
  std::string file;                           ///< the run file, as given
  std::map<std::string, std::string> locations;  ///< "section.key" -> where it was set: "file:line" or override "..."
  bool given(const std::string& key) const { return locations.contains(key); }
};

/// Returns the origin of `key` ("parallel.devices") for error messages: "inputs/fsdp.yaml:12", override
/// "parallel.devices=2", or "inputs/fsdp.yaml" for a key that has its default value.
inline std::string location_of(const KeyLocations& keys, const std::string& key) {
  const auto found = keys.locations.find(key);
  return found == keys.locations.end() ? keys.file : found->second;
}

}  // namespace blipft
