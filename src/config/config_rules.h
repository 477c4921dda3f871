// Config rules: the one table of keys whose values conflict. The command line wins over the run file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blipft/config.h"

namespace blipft {

/// A statement about the value of one key.
struct Condition {
  enum class Kind {
    is, is_not,    ///< the value is one, or none, of `values`
    given,         ///< the run file or the command line gives the key, with none of `values`
    set, unset,    ///< the value differs from the default, or equals it
    stated,        ///< as `set`; against the run file every value on the command line counts, the default too
    has, lacks,    ///< the list contains values[0], or not
  };
  Kind kind;
  const char* key;
  std::vector<std::string> values = {};

  /// `settling`: the command line is compared with the run file.
  bool holds(const Config& config, bool settling = false) const;
};

/// Conditions that conflict if all of them hold.
struct KeyConflict {
  std::vector<Condition> conditions;  ///< messages name the first key
  /// The key of the run file that is ignored if the command line sets another key of the row. any_key: the first in the
  /// order of the row that the file gives. first_key: only the first of the row, because it refines a choice that the
  /// others make (train.momentum refines train.optim), and cannot override it.
  enum class Yields { any_key, first_key } yields = Yields::any_key;
  const char* remedy = "";            ///< empty: follows from the conditions
  bool refused = true;                ///< false: values of one source may stay; a later check may refuse them
  /// Relates the values to each other; null: the conditions say all. `ranks` is 1 where their number is unknown.
  bool (*where)(const Config& config, int64_t ranks) = nullptr;
  std::vector<const char*> example = {};  ///< values of the keys that conflict, if the conditions do not say them

  bool holds(const Config& config, int64_t ranks, bool settling = false) const;
};

/// The table, in the order in which it is searched.
const std::vector<KeyConflict>& key_conflicts();

/// Sets the defaults that follow from other keys: train.max_steps alone ends the run, and train.total_batch_size alone
/// leaves the micro-batches open.
void set_implied_defaults(Config& config);

/// Resets keys of the run file that conflict with the command line to their defaults, and adds a note to config.notes
/// for each. Sets implied defaults. `ranks` of the run; 0: parallel.devices.
void resolve_conflicts(Config& config, int64_t ranks);

/// Throws UserError, with file and line, if values conflict.
void check_conflicts(const Config& config);

}  // namespace blipft
