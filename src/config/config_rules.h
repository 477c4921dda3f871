// Config rules: the one table of values that are fine by themselves and cannot stand together.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "blipft/config.h"

namespace blipft {

/// What cannot stand together. Where one side was given on the command line and the other in the run file, the command
/// line wins: the file's key is left out, with a note. Else it is refused.
struct Rule {
  const char* key;                                   ///< the key that messages name
  /// "is 0.9, but train.optim is lion; ...": what is wrong, and what to do; "" where nothing is.
  std::function<std::string(const Config&)> found;
  std::vector<const char*> yields_to = {};           ///< given on the command line, these leave a file's `key` out
  std::vector<const char*> wins_over = {};           ///< `key` on the command line leaves a file's values of these out
  const char* element = "";                          ///< of a list this element alone is left out; "": the whole list
  bool refused = true;                               ///< false: where neither side wins, both stay
};

/// In the order in which they are looked at.
const std::vector<Rule>& config_rules();

/// Leaves out what the command line makes moot: those keys get their default values, and config.notes says so.
/// With train.max_steps alone the epochs are not limited.
void settle_contradictions(Config& config);

/// Throws UserError, with file and line, on a combination of values that cannot work.
void check_rules(const Config& config);

}  // namespace blipft
