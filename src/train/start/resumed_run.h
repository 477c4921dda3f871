// Checks whether the configuration allows resuming the run of a checkpoint.
#pragma once

#include <string>

#include "blipft/config.h"
#include "checkpoint/resume.h"

namespace blipft {

/// Returns true if a resumed run may have another length, because its learning rates do not depend on the length.
bool length_may_change(const Config& config);

/// Throws UserError with every key whose changed value does not allow resuming. `config` is resolved for `ranks` ranks.
void check_same_run(const Config& config, const ResumePoint& point, int64_t ranks);

/// Returns the allowed changes of keys since the checkpoint, "data.on_bad_sample skip instead of stop, ..."; "" if
/// there are none. Changes of file paths and of keys that only concern the start are omitted.
std::string what_was_changed(const Config& config, const ResumePoint& point);

}  // namespace blipft
