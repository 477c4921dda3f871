// What the table of the run file's keys says of a key beside its values.
#pragma once

#include <string>

namespace blipft {

/// Whether a run may go on from a checkpoint with another value of a key.
enum class OnResume {
  refused,                           ///< it would be another run
  length,                            ///< it says where the run ends: where no step's learning rate depends on that
  allowed,                           ///< what was trained so far is the same; log and trace name the change
  untold,                            ///< the same, and nothing to be named: where files lie, how to start
};

struct KeyRules {
  OnResume on_resume = OnResume::refused;
  bool of_each_rank = false;         ///< ranks may have values of their own, as machines differ
  std::string default_value;         ///< as config_values() writes it
};

/// Of a key by section and name, "train.lr". Throws Error where there is none of that name.
KeyRules rules_of(const std::string& key);

}  // namespace blipft
