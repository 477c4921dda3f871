// KeyPlaces: where the keys of a run file were set, for messages.
#pragma once

#include <map>
#include <string>

namespace blipft {

struct KeyPlaces {
  std::string file;                           ///< the run file, as given
  std::map<std::string, std::string> places;  ///< "section.key" -> where it was set: "file:line" or override "..."
  bool given(const std::string& key) const { return places.contains(key); }
};

/// Returns the origin of `key` ("parallel.devices") for error messages: "inputs/fsdp.yaml:12", override
/// "parallel.devices=2", or "inputs/fsdp.yaml" for a key that has its default value.
inline std::string place_of(const KeyPlaces& keys, const std::string& key) {
  const auto found = keys.places.find(key);
  return found == keys.places.end() ? keys.file : found->second;
}

}  // namespace blipft
