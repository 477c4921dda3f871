// The folder of a run; see output_folder.h.
#include "run/output_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>

#include "blipft/checkpoint.h"
#include "blipft/error.h"
#include "io/file.h"
#include "io/state_files.h"
#include "memory/memory_text.h"
#include "run/record_files.h"

namespace blipft {

namespace {

namespace fs = std::filesystem;

constexpr const char* kCheckpoints = "checkpoints";

std::string in(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }

bool has_entries(const std::string& folder) {
  std::error_code error;
  return fs::is_directory(folder, error) && !fs::is_empty(folder, error) && !error;
}

// Trace files of any rank and any part of a run.
std::vector<std::string> traces_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator item(folder, error), end; !error && item != end; item.increment(error)) {
    const std::string name = item->path().filename().string();
    std::error_code broken;
    if (name.starts_with("trace") && name.ends_with(".h5") && item->is_regular_file(broken)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string names_text(const std::vector<std::string>& names) {
  constexpr size_t kNamed = 4;
  std::string text;
  for (size_t i = 0; i < std::min(kNamed, names.size()); ++i) text += (i > 0 ? ", " : "") + names[i];
  return names.size() > kNamed ? concat(text, " and ", names.size() - kNamed, " more") : text;
}

// The folders that the run saves into, with the stem of the files that may be replaced there.
std::vector<std::pair<std::string, std::string>> saved_folders(const Config& config) {
  std::vector<std::pair<std::string, std::string>> folders;
  if (!config.output.save_model) return folders;
  for (const SaveSettings& settings : SaveSettings::of(config))
    folders.push_back({in(config.output.path, settings.folder()),
                       settings.what == SaveSettings::What::adapters ? "adapter_model" : "model"});
  return folders;
}

// One spelling of a folder, whether it is there or not.
fs::path resolved(const fs::path& folder) {
  std::error_code error;
  const fs::path path = fs::weakly_canonical(fs::absolute(folder, error), error);
  return path.has_filename() ? path : path.parent_path();
}

bool is_same(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;  // by device and inode
}

// Whether `path`, behind all links, is `folder` or lies in it.
bool lies_in(const fs::path& path, const std::string& folder) {
  std::error_code error;
  fs::path at = fs::canonical(path, error);
  if (error) return false;
  for (; !is_same(at, folder); at = at.parent_path())
    if (at == at.root_path()) return false;
  return true;
}

// Whether that holds for it or for a file in it: a model's folder may be one of links.
bool reads_from(const std::string& path, bool look_inside, const std::string& folder) {
  if (lies_in(path, folder)) return true;
  std::error_code error;
  for (fs::directory_iterator item(path, error), end; look_inside && !error && item != end; item.increment(error))
    if (lies_in(item->path(), folder)) return true;
  return false;
}

// The folder, or the nearest around it that is there.
std::string existing(const std::string& folder) {
  std::error_code error;
  fs::path path = fs::absolute(folder, error);
  while (!fs::exists(path, error) && path != path.root_path()) path = path.parent_path();
  return path.string();
}

int64_t bytes_of(const fs::path& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) ? int64_t{status.st_blocks} * 512 : 0;
}

// What remove_results() would free.
int64_t removable_bytes(const std::string& folder) {
  int64_t bytes = 0;
  for (const std::string& name : traces_in(folder)) bytes += bytes_of(in(folder, name));
  std::error_code error;
  for (fs::recursive_directory_iterator item(in(folder, kCheckpoints), error), end; !error && item != end;
       item.increment(error))
    bytes += bytes_of(item->path());
  return bytes;
}

struct Disk {
  std::string folder;                      // one that is on it
  int64_t free = 0, needed = 0, all = 0;
  std::string list;                        // "model 14.00 GiB, trace 1.00 GiB"
};

}  // namespace

std::vector<std::string> results_in(const std::string& folder) {
  std::vector<std::string> names = traces_in(folder);
  for (const std::string& name : record_files_in(folder)) names.push_back(name);
  for (const char* name : {"model", "adapter", kCheckpoints})
    if (has_entries(in(folder, name))) names.push_back(name);
  return names;
}

std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator item(folder, error), end; !error && item != end; item.increment(error)) {
    const std::string name = item->path().filename().string();
    if (io::checkpoint_step(name) >= 0) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool has_whole_checkpoint(const std::string& folder) {
  const std::vector<std::string> names = checkpoints_in(folder);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    std::error_code ignored;
    return fs::exists(in(in(folder, name), "checkpoint.json"), ignored);
  });
}

std::string checkpoints_elsewhere(const Config& config) {
  const std::string folder = checkpoints_folder(config);
  return resolved(folder) == resolved(in(config.output.path, kCheckpoints)) ? "" : folder;
}

bool replaces_results(const Config& config, bool resumed) {
  if (resumed || config.output.overwrite) return !resumed;
  if (config.checkpoint.resume != "auto") return false;
  const std::vector<std::string> found = results_in(config.output.path);
  const auto saved = [](const std::string& name) { return name == "model" || name == "adapter"; };
  return !has_whole_checkpoint(in(config.output.path, kCheckpoints)) && std::none_of(found.begin(), found.end(), saved);
}

void check_results(const Config& config, bool resumed) {
  const std::string& path = config.output.path;
  const std::vector<std::string> found = results_in(path);
  BLIPFT_USER_CHECK(resumed || replaces_results(config, resumed) || found.empty(), place_of(config, "output.path"),
                    ": output.path: ", path, " holds another run's results (", names_text(found),
                    "); choose another output.path, or replace them with output.overwrite=true");
  for (const auto& [folder, stem] : saved_folders(config)) {
    check_replaceable(folder, stem);
    BLIPFT_USER_CHECK(::access(folder.c_str(), F_OK) != 0 || ::access(folder.c_str(), W_OK | X_OK) == 0, folder,
                      ": is to be replaced by the saved model, but you may not write to it: ", io::errno_text());
  }
}

void check_checkpoints(const Config& config, const std::string& resumed) {
  const std::string folder = checkpoints_elsewhere(config);
  if (folder.empty()) return;
  const std::string place = place_of(config, "checkpoint.path"), own = resolved(in(config.output.path, kCheckpoints)).string();
  BLIPFT_USER_CHECK(!resolved(folder).string().starts_with(own + "/"), place, ": checkpoint.path: ", folder, " lies in ",
                    own, ", which is the run's own folder of checkpoints; leave checkpoint.path out, or choose another");
  const bool goes_on = !resumed.empty() && resolved(fs::path(resumed) / "..") == resolved(folder);
  const std::vector<std::string> there = checkpoints_in(folder);
  BLIPFT_USER_CHECK(goes_on || config.output.overwrite || there.empty(), place, ": checkpoint.path: ", folder,
                    " holds another run's checkpoints (", names_text(there),
                    "); choose another checkpoint.path, or replace them with output.overwrite=true");
}

void check_sources(const Config& config, bool resumed) {
  std::vector<std::string> replaced;
  for (const auto& [folder, stem] : saved_folders(config))
    for (const char* end : {"", ".partial", ".old"}) replaced.push_back(folder + end);
  if (replaces_results(config, resumed)) replaced.push_back(in(config.output.path, kCheckpoints));
  if (const std::string elsewhere = checkpoints_elsewhere(config); config.output.overwrite && !resumed && !elsewhere.empty())
    for (const std::string& name : checkpoints_in(elsewhere)) replaced.push_back(in(elsewhere, name));
  struct ReadPath {
    const char* key;
    const std::string& path;
    bool look_inside;
  };
  for (const ReadPath& source : {ReadPath{"model.path", config.model.path, true},
                               ReadPath{"adapter.path", config.adapter.path, true},
                               ReadPath{"data.path", config.data.path, false},
                               ReadPath{"data.val_path", config.data.val_path, false},
                               ReadPath{"data.pictures", config.data.pictures, false}})
    for (const std::string& folder : replaced)
      BLIPFT_USER_CHECK(source.path.empty() || !reads_from(source.path, source.look_inside, folder),
                        place_of(config, source.key), ": ", source.key, ": ", source.path, " is read from ", folder,
                        ", which this run would replace; choose another output.path");
}

std::string check_room(const Config& config, const std::vector<FileToWrite>& files, int64_t reclaimed) {
  std::map<dev_t, Disk> disks;
  for (const FileToWrite& file : files) {
    const std::string folder = existing(file.folder);
    struct stat status{};
    BLIPFT_USER_CHECK(::stat(folder.c_str(), &status) == 0, folder, ": cannot be looked at: ", io::errno_text());
    const auto [found, is_new] = disks.try_emplace(status.st_dev);
    Disk& disk = found->second;
    if (is_new) {
      disk.folder = file.folder;
      disk.free = io::free_bytes(folder);
      struct stat output{};
      if (::stat(config.output.path.c_str(), &output) == 0 && output.st_dev == status.st_dev) disk.free += reclaimed;
    }
    disk.all += file.bytes;
    if (file.needed) disk.needed += file.bytes;
    disk.list += concat(disk.list.empty() ? "" : ", ", file.what, " ", memory_text(file.bytes));
  }
  std::string warning;
  for (const auto& [device, disk] : disks) {
    const std::string text = concat("the disk of ", disk.folder, " has ", memory_text(disk.free),
                                    " free, but this run is going to write ", memory_text(disk.all), " there: ",
                                    disk.list);
    BLIPFT_USER_CHECK(disk.needed <= disk.free, place_of(config, "output.path"), ": output.path: ", text,
                      "; free some, or choose another output.path");
    if (disk.all > disk.free) warning = text;
  }
  return warning;
}

std::vector<FileToWrite> files_to_save(const Config& config, const Units& units, const ParameterStore& store) {
  std::vector<FileToWrite> files;
  if (!config.output.save_model) return files;
  std::unique_ptr<SafetensorsReader> checkpoint;
  for (const SaveSettings& settings : SaveSettings::of(config)) {
    // A checkpoint that cannot be read is told of when it is loaded.
    if (settings.pretrained && !checkpoint) {
      try {
        checkpoint = std::make_unique<SafetensorsReader>(config.model.path);
      } catch (const UserError&) {
      }
    }
    files.push_back({settings.folder(), saved_bytes(units, store, settings, checkpoint.get()),
                     in(config.output.path, settings.folder())});
  }
  return files;
}

void remove_results(const std::string& folder) {
  std::error_code error;
  const auto check = [&](const std::string& path) {
    BLIPFT_USER_CHECK(!error, path, ": left by another run, cannot be removed: ", error.message());
  };
  for (const std::string& name : traces_in(folder)) {
    fs::remove(in(folder, name), error);
    check(in(folder, name));
  }
  remove_record_files(folder);
  const std::string checkpoints = in(folder, kCheckpoints);  // stays: it may be a link to another disk
  std::vector<fs::path> old;
  std::error_code none;
  for (fs::directory_iterator item(checkpoints, none), end; !none && item != end; item.increment(none))
    old.push_back(item->path());
  for (const fs::path& path : old) {
    fs::remove_all(path, error);
    check(path.string());
  }
}

void remove_checkpoints(const std::string& folder) {
  for (const std::string& name : checkpoints_in(folder)) {
    std::error_code error;
    if (!fs::exists(in(in(folder, name), "checkpoint.json"), error)) continue;  // other programs have such names too
    fs::remove_all(in(folder, name), error);
    BLIPFT_USER_CHECK(!error, in(folder, name), ": left by another run, cannot be removed: ", error.message());
  }
}

OutputFolder::OutputFolder(const Config& config, const World& world, const std::string& resumed)
    : config_(config), world_(world), resumed_(!resumed.empty()) {
  world_.together([&] {
    if (world_.rank() != 0) return;
    check_sources(config_, resumed_);
    try {
      make_folder("output.path", config_.output.path);
      lock(config_.output.path);
      check_results(config_, resumed_);
      make_checkpoints_folder();
      check_checkpoints(config_, resumed);
      replaces_ = replaces_results(config_, resumed_);
    } catch (...) {
      give_up();                           // no destructor runs for an object that was never made
      throw;
    }
  });
  try {
    share_locks();
  } catch (...) {
    give_up();
    throw;
  }
}

// Tells all ranks of the locks, which must be seen by all of them: they work in one folder.
void OutputFolder::share_locks() {
  const auto count = static_cast<size_t>(std::stoul(world_.from_rank(0, std::to_string(locks_.size()))));
  for (size_t i = 0; i < count; ++i) {
    const bool mine = i < locks_.size();   // on rank 0
    const std::string path = world_.from_rank(0, mine ? locks_[i]->path() : "");
    held_.push_back({path, world_.from_rank(0, mine ? locks_[i]->text() : "")});
  }
  const std::string host = world_.from_rank(0, world_.host());
  world_.together([&] {
    for (const auto& [path, text] : held_)
      BLIPFT_USER_CHECK(FolderLock::is_there(path, text), fs::path(path).parent_path().string(),
                        ": is not the folder in which rank 0 on ", host, " works: its ", path,
                        " cannot be seen here; give output.path and checkpoint.path a file system that all ranks share, ",
                        "and as absolute paths");
  });
}

void OutputFolder::make_folder(const std::string& key, const std::string& path) {
  std::vector<std::string> made;
  std::error_code error;
  for (fs::path at = fs::absolute(path, error); !fs::exists(at, error) && at != at.root_path(); at = at.parent_path())
    if (at.has_filename()) made.push_back(at.string());
  made_.insert(made_.begin(), made.begin(), made.end());
  error.clear();
  fs::create_directories(path, error);
  BLIPFT_USER_CHECK(!error && fs::is_directory(path), place_of(config_, key), ": ", key, ": cannot create the folder ",
                    path, ": ", error ? error.message() : "it is a file");
}

// It also shows that the folder can be written to.
void OutputFolder::lock(const std::string& path) { locks_.push_back(std::make_unique<FolderLock>(path)); }

// One of its own may be another run's too. That of a run that writes none but when it is stopped is made then.
void OutputFolder::make_checkpoints_folder() {
  const std::string elsewhere = checkpoints_elsewhere(config_);
  if (!elsewhere.empty()) {
    make_folder("checkpoint.path", elsewhere);
    if (!is_same(elsewhere, config_.output.path)) lock(elsewhere);
  } else if (writes_checkpoints(config_)) {
    const std::string folder = checkpoints_folder(config_);
    make_folder("checkpoint.path", folder);
    BLIPFT_USER_CHECK(::access(folder.c_str(), W_OK | X_OK) == 0, folder,
                      ": checkpoints are to be written there, but you may not: ", io::errno_text());
  }
}

OutputFolder::~OutputFolder() {
  if (std::uncaught_exceptions() > 0) unlock()();
  give_up();
}

std::function<void()> OutputFolder::unlock() const {
  return [held = held_] {
    for (const auto& [path, text] : held) FolderLock::remove(path, text);
  };
}

void OutputFolder::give_up() {
  locks_.clear();
  for (const std::string& folder : made_) ::rmdir(folder.c_str());  // one that is not empty stays
}

void OutputFolder::check_room(const std::function<std::vector<FileToWrite>()>& files) const {
  world_.together([&] {
    if (world_.rank() != 0) return;
    const std::string warning =
        blipft::check_room(config_, files(), replaces_ ? removable_bytes(config_.output.path) : 0);
    if (!warning.empty()) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  });
}

void OutputFolder::remove_earlier() const {
  world_.together([&] {
    if (world_.rank() != 0 || !replaces_) return;
    remove_results(config_.output.path);
    if (config_.output.overwrite) remove_checkpoints(checkpoints_folder(config_));
  });
}

}  // namespace blipft
