// Resume: finds the checkpoint that a run resumes from, and checks that it belongs to the run.
#pragma once

#include <memory>
#include <string>

#include "agreement/same_run.h"
#include "blipft/comm.h"
#include "blipft/run_settings.h"
#include "io/state_files.h"

namespace blipft {

struct ResumePoint {
  std::string folder;
  io::StateIndex index;
};

/// Returns the checkpoint that checkpoint.resume selects: null for never, and for auto if there is no complete
/// checkpoint. All ranks must call it and get the same checkpoint. Throws AgreedError with the missing or damaged file.
std::unique_ptr<ResumePoint> find_resume_point(const RunSettings& config, const World& world);

/// Throws UserError if checkpoint.resume is a path that is not a folder.
void check_resume_folder(const RunSettings& config);

/// Returns the folder with the latest step in `checkpoints` that blipft has written, even if it is damaged; "" if there
/// is none. Prints notes to stderr about folders that it ignores, and if a folder with an earlier step has a later file
/// time.
std::string newest_checkpoint(const std::string& checkpoints);

/// Compares `facts` about the files that the run reads with those in the checkpoint. Throws UserError for differences
/// that are not allowed. Returns the others: "the data at data.val_path ... instead of ...", or "".
std::string check_same_content(const RunSettings& config, const ResumePoint& point, const Facts& facts);

/// Returns the entries of `now` that differ from the checkpoint and may change rounding, "ranks 4 instead of 2,
/// strategy ..."; "" if there are none.
std::string what_may_change_bits(const ResumePoint& point, const std::map<std::string, std::string>& now);

}  // namespace blipft
