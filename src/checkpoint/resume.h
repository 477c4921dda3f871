// Resume: the checkpoint that a run goes on from, and whether it is of this run.
#pragma once

#include <memory>
#include <string>

#include "agreement/same_run.h"
#include "blipft/comm.h"
#include "blipft/config.h"
#include "io/state_files.h"

namespace blipft {

struct ResumePoint {
  std::string folder;
  io::StateIndex index;
};

/// As checkpoint.resume says: null for never, and for auto where there is no whole checkpoint. Called by all ranks,
/// which get the same one. Throws AgreedError naming what is missing or damaged.
std::unique_ptr<ResumePoint> find_resume_point(const Config& config, const World& world);

/// Throws UserError where checkpoint.resume names a folder that is none.
void check_resume_folder(const Config& config);

/// The folder of the latest step in `checkpoints` that this program has written, be it damaged; "" when there is none. Tells on
/// stderr what it leaves out, and where file times say otherwise.
std::string newest_checkpoint(const std::string& checkpoints);

/// Whether a run's length may change when it goes on: its learning rates do not follow the length.
bool length_may_change(const Config& config);

/// Throws UserError that names every key whose value would make another run of it. `config` is resolved for `ranks`.
void check_same_run(const Config& config, const ResumePoint& point, int64_t ranks);

/// The same for what the run reads: what the checkpoint has of `facts` must be equal. Throws UserError. Returns what is not,
/// and may be: "the data at data.val_path is ... instead of ...", or "".
std::string check_same_content(const Config& config, const ResumePoint& point, const Facts& facts);

/// The keys with another value than when the checkpoint was written, of which no step so far depends; "" where there are
/// none. "data.on_bad_sample skip instead of stop, ..."; of the paths of files, and of the start itself, none.
std::string what_was_changed(const Config& config, const ResumePoint& point);

/// What of `now` is not as it was when the checkpoint was written, and may change rounding; "" where nothing is.
/// "ranks 4 instead of 2, strategy ..."
std::string what_may_change_bits(const ResumePoint& point, const std::map<std::string, std::string>& now);

}  // namespace blipft
