// Finding and checking a checkpoint; see resume.h.
#include "checkpoint/resume.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "io/named_checkpoints.h"

namespace blipft {

namespace fs = std::filesystem;

namespace {

std::string shortened(const std::string& text) { return text.size() > 80 ? text.substr(0, 77) + "..." : text; }

}  // namespace

std::string newest_checkpoint(const std::string& checkpoints) {
  // An unreadable folder must not count as a folder without checkpoints: the run would start from the beginning.
  const auto check = [](const std::error_code& error, const fs::path& path) {
    const bool absent = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
    BLIPFT_USER_CHECK(!error || (absent && !fs::is_symlink(path)), path.string(), ": cannot be looked at for checkpoints: ",
                      error.message(), "; is its file system mounted? With checkpoint.resume=never a run begins anew");
    return !error;
  };
  std::error_code error;
  const fs::directory_iterator looked(checkpoints, error);
  if (!check(error, checkpoints)) return "";
  std::string newest, latest;              // newest by step, latest by file time
  fs::file_time_type latest_time;
  for (const io::NamedCheckpoint& one : io::named_checkpoints(checkpoints)) {
    if (one.end != io::NamedCheckpoint::End::none) continue;
    const fs::path index = fs::path(checkpoints) / one.name / "checkpoint.json";
    std::error_code unread;
    const fs::file_time_type time = fs::last_write_time(index, unread);
    if (one.claims) check(unread, index);
    if (!one.own && !one.claims) {         // of another program, or an incomplete copy
      std::fprintf(stderr, "note: %s is left out of account: %s\n", index.parent_path().c_str(), one.why.c_str());
      continue;
    }
    newest = index.parent_path().string(); // sorted by step
    if (unread || (!latest.empty() && time <= latest_time)) continue;
    latest = newest, latest_time = time;
  }
  if (!latest.empty() && latest != newest)
    std::fprintf(stderr, "note: %s is of the latest step, and the run goes on from it, though %s was written later; was a "
                 "clock set back, or an earlier checkpoint gone on from? checkpoint.resume=PATH takes another\n",
                 newest.c_str(), latest.c_str());
  return newest;
}

void check_resume_folder(const RunSettings& config) {
  if (config.checkpoint.resume == ResumeMode::never || config.checkpoint.resume == ResumeMode::automatic) return;
  const std::string& folder = config.checkpoint.resume.text;
  BLIPFT_USER_CHECK(fs::is_directory(folder), location_of(config, "checkpoint.resume"), ": checkpoint.resume: ", folder,
                    " is no folder; expected a checkpoint, such as ", checkpoints_folder(config), "/",
                    io::checkpoint_name(100), ", or auto");
}

std::unique_ptr<ResumePoint> find_resume_point(const RunSettings& config, const World& world) {
  if (config.checkpoint.resume == ResumeMode::never) return nullptr;
  std::string folder = config.checkpoint.resume.text;
  // Rank 0 chooses: on a network file system, other ranks may see a new folder later.
  world.run_agreeing_on_errors([&] {
    if (config.checkpoint.resume == ResumeMode::automatic)
      folder = world.rank() == 0 ? newest_checkpoint(checkpoints_folder(config)) : "";
  });
  folder = world.from_rank(0, folder);
  if (folder.empty()) return nullptr;
  auto point = std::make_unique<ResumePoint>();
  point->folder = folder;
  world.run_agreeing_on_errors([&] {
    check_resume_folder(config);
    point->index = io::read_index(folder);
  });
  return point;
}

std::string check_same_content(const RunSettings& config, const ResumePoint& point, const Facts& facts) {
  std::string changes;
  for (const Fact& fact : facts) {
    const auto found = point.index.run.find(fact.name);
    if (found == point.index.run.end() || found->second == fact.value) continue;
    // With loss_on_padding, other validation texts may change the padding of training texts.
    BLIPFT_USER_CHECK(fact.evaluates && !config.steps.loss_on_padding, location_of(config, "checkpoint.resume"),
                      ": checkpoint.resume: ", point.folder, ": ", fact.name, " is ", shortened(fact.value), " here (",
                      fact.location, "), ", shortened(found->second), " there; give the run the files that it began with");
    changes += concat(changes.empty() ? "" : ", ", fact.name, " ", shortened(fact.value), " instead of ",
                      shortened(found->second));
  }
  return changes;
}

std::string what_may_change_bits(const ResumePoint& point, const std::map<std::string, std::string>& now) {
  std::string changes;
  for (const auto& [name, value] : now) {
    const auto found = point.index.run.find(name);
    if (found == point.index.run.end() || found->second == value) continue;
    changes += concat(changes.empty() ? "" : ", ", name, " ", value, " instead of ", found->second);
  }
  return changes;
}

}  // namespace blipft
