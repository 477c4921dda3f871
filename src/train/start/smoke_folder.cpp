// The folder of a trial; see smoke_folder.h.
#include "train/start/smoke_folder.h"

#include <stdlib.h>
#include <unistd.h>

#include <exception>
#include <filesystem>

#include "agreement/folder_lock.h"
#include "blipft/error.h"
#include "io/file.h"
#include "ops/quietly.h"

namespace blipft {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxMarkBytes = 1 << 16;

std::string mark_file(const std::string& folder) { return folder + "/.smoke"; }

}  // namespace

SmokeFolder::SmokeFolder(const Config& config, const World& world) : world_(world) {
  world_.together([&] {
    if (world_.rank() == 0) make(place_of(config, "output.path"), config.output.path);
  });
  path_ = world_.from_rank(0, path_);
  mark_ = world_.from_rank(0, mark_);
}

// mkdtemp makes a folder that was not there, and that nobody else may write into.
void SmokeFolder::make(const std::string& place, const std::string& output) {
  std::error_code error;
  const fs::path whole = fs::absolute(output, error);
  const fs::path around = (whole.has_filename() ? whole : whole.parent_path()).parent_path();
  for (fs::path at = around; !fs::exists(at, error) && at != at.root_path(); at = at.parent_path())
    made_.push_back(at.string());
  error.clear();
  fs::create_directories(around, error);
  std::string name = (around / ".smoke-XXXXXX").string();
  BLIPFT_USER_CHECK(!error && ::mkdtemp(name.data()), place, ": output.path: ", output, ": cannot make a folder for the ",
                    "trial beside it, in ", around.string(), ": ", error ? error.message() : io::errno_text(),
                    "; give an output.path that you may write to");
  path_ = name;
  mark_ = concat("trial of blipft in ", name, "\n", LockOwner::self().text());
  const io::FileDescriptor file = io::create_file(mark_file(path_));
  io::write_at(file, 0, mark_.data(), static_cast<int64_t>(mark_.size()), mark_file(path_));
}

// On an error any rank does: rank 0 may be ended before it can.
SmokeFolder::~SmokeFolder() {
  if (world_.rank() == 0 || std::uncaught_exceptions() > 0) remove();
  for (const std::string& folder : made_) ::rmdir(folder.c_str());  // one that is not empty stays
}

void SmokeFolder::remove() const {
  quietly([&] {
    if (path_.empty() || io::read_whole_file(mark_file(path_), kMaxMarkBytes) != mark_) return;
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  });
}

}  // namespace blipft
