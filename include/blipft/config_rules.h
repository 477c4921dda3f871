// Rules of the keys of the run file: the properties of a key other than its allowed values.
#pragma once

#include <string>
#include <vector>

namespace blipft {

struct Config;

/// The rule for a resume from a checkpoint that was written with another value of a key.
enum class OnResume {
  refused,                           ///< another value makes it a different run
  length,                            ///< it says where the run ends: where no step's learning rate depends on that
  allowed,                           ///< what was trained so far is the same; log and trace name the change
  unreported,                            ///< the same, and nothing to be named: where files lie, how to start
};

struct KeyRules {
  OnResume on_resume = OnResume::refused;
  bool of_each_rank = false;         ///< the value may differ between ranks because machines differ
  std::string default_value;         ///< as config_values() writes it
};

/// Returns the rules of a key given as section and name, "train.lr". Throws Error if no key has that name.
KeyRules rules_of(const std::string& key);

/// Returns the keys that decide what a run trains: those of which a resume refuses another value (OnResume::refused).
std::vector<std::string> keys_of_a_run();
/// Returns true if the command line set `key`.
bool on_command_line(const Config& config, const std::string& key);
/// Gives `key` the value that it has in `run`, unless the command line set it. Adds a note if that is another value.
void take_from_run(Config& config, const Config& run, const std::string& key);

}  // namespace blipft
