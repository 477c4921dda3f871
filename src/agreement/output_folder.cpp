// The folder of a run; see output_folder.h.
#include "agreement/output_folder.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <set>

#include "agreement/record_files.h"
#include "blipft/error.h"
#include "io/file.h"
#include "io/named_checkpoints.h"
#include "io/saved_model.h"
#include "trace/trace_files.h"

namespace blipft {

namespace {

namespace fs = std::filesystem;

constexpr const char* kCheckpoints = "checkpoints";
constexpr const char* kSaved[] = {"model", "adapter"};

std::string in(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }

// Removes a final slash: a link's name with a final slash would mean the target of the link.
fs::path without_slash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

bool is_link(const std::string& path) {
  std::error_code error;
  return fs::is_symlink(fs::symlink_status(without_slash(path), error));
}

std::string names_text(const std::vector<std::string>& names) {
  constexpr size_t kNamed = 4;
  std::string text;
  for (size_t i = 0; i < std::min(kNamed, names.size()); ++i) text += (i > 0 ? ", " : "") + names[i];
  return names.size() > kNamed ? concat(text, " and ", names.size() - kNamed, " more") : text;
}

// Returns the texts of rank 0 on all ranks. The texts contain no NUL.
std::vector<std::string> texts_of_first_rank(const World& world, const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) joined.append(text).push_back('\0');
  joined = world.from_rank(0, joined);
  std::vector<std::string> all;
  for (size_t at = 0; at < joined.size(); at += all.back().size() + 1) all.emplace_back(joined.c_str() + at);
  return all;
}

// Returns the names of saved models and adapters in `folder`: model, model-2, ..., adapter, ...
std::vector<std::string> saved_names(const std::string& folder) {
  std::vector<std::string> names;
  for (const char* name : kSaved)
    for (std::string& one : io::saved_names(folder, name)) names.push_back(std::move(one));
  return names;
}

// Returns the saved models that a run with output.overwrite removes before it begins. Models that this run will replace
// when it saves are not among them.
std::vector<std::string> removed_models(const RunSettings& config) {
  std::vector<std::string> folders;
  if (!config.output.overwrite) return folders;
  const std::vector<std::string> replaced = output_names(config).saved;
  for (const std::string& name : saved_names(config.output.path))
    if (const std::string folder = in(config.output.path, name);
        std::find(replaced.begin(), replaced.end(), folder) == replaced.end() && io::saved_model(folder).own)
      folders.push_back(folder);
  return folders;
}

// Returns the absolute path of a folder without links and final slash. The folder need not exist.
fs::path resolved(const fs::path& folder) {
  std::error_code error;
  const fs::path path = fs::weakly_canonical(fs::absolute(folder, error), error);
  return path.has_filename() ? path : path.parent_path();
}

bool is_same(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;  // by device and inode
}

// Returns true if `path`, with all links resolved, is `folder` or lies in it.
bool lies_in(const fs::path& path, const std::string& folder) {
  std::error_code error;
  fs::path at = fs::canonical(path, error);
  if (error) return false;
  for (; !is_same(at, folder); at = at.parent_path())
    if (at == at.root_path()) return false;
  return true;
}

// Returns true if `path` lies in `folder`, or, with `look_inside`, if an entry of `path` does: the folder of a model
// may consist of links.
bool reads_from(const std::string& path, bool look_inside, const std::string& folder) {
  if (lies_in(path, folder)) return true;
  std::error_code error;
  for (fs::directory_iterator item(path, error), end; look_inside && !error && item != end; item.increment(error))
    if (lies_in(item->path(), folder)) return true;
  return false;
}

}  // namespace

std::vector<std::string> results_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const TraceFile& file : own_trace_files(folder)) names.push_back(fs::path(file.path).filename().string());
  for (const std::string& name : record_files_in(folder)) names.push_back(name);
  for (const std::string& name : saved_names(folder))
    if (const io::SavedModel model = io::saved_model(in(folder, name)); model.own && model.whole) names.push_back(name);
  const auto all = io::named_checkpoints(in(folder, kCheckpoints));
  if (std::any_of(all.begin(), all.end(), [](const auto& one) { return one.own || one.claims; }))
    names.push_back(kCheckpoints);
  return names;
}

OutputNames output_names(const RunSettings& config) {
  const OutputSection& output = config.output;
  const bool adapters = config.adapter.kind != AdapterKind::none;
  OutputNames names{output.path, checkpoints_folder(config), {}};
  if (output.save_model && adapters) names.saved.push_back(in(output.path, "adapter"));
  if (output.save_model && (!adapters || output.save_merged)) names.saved.push_back(in(output.path, "model"));
  return names;
}

std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const io::NamedCheckpoint& one : io::named_checkpoints(folder))
    if (one.is_whole()) names.push_back(one.name);
  return names;
}

bool has_whole_checkpoint(const std::string& folder) {
  const auto all = io::named_checkpoints(folder);
  return std::any_of(all.begin(), all.end(), [](const auto& one) { return one.is_whole() || one.claims; });
}

std::string checkpoints_elsewhere(const RunSettings& config) {
  const std::string folder = checkpoints_folder(config);
  return resolved(folder) == resolved(in(config.output.path, kCheckpoints)) ? "" : folder;
}

bool replaces_results(const RunSettings& config, bool resumed) {
  if (resumed || config.output.overwrite) return !resumed;
  if (config.checkpoint.resume != ResumeMode::automatic) return false;
  const std::vector<std::string> found = results_in(config.output.path);
  const auto saved = [](const std::string& name) { return name.starts_with("model") || name.starts_with("adapter"); };
  return !has_whole_checkpoint(in(config.output.path, kCheckpoints)) && std::none_of(found.begin(), found.end(), saved);
}

// Returns advice to set checkpoint.resume=auto if the folder of checkpoints holds a whole one, else "".
std::string how_to_go_on(const RunSettings& config) {
  const std::vector<std::string> whole = checkpoints_in(checkpoints_folder(config));
  if (config.checkpoint.resume != ResumeMode::never || whole.empty()) return "";
  return concat("checkpoint.resume=auto goes on with it after its newest checkpoint, ", whole.back(), "; else ");
}

void check_results(const RunSettings& config, bool resumed) {
  const std::string& path = config.output.path;
  const std::vector<std::string> found = resumed ? std::vector<std::string>() : results_in(path);
  BLIPFT_USER_CHECK(resumed || replaces_results(config, resumed) || found.empty(), location_of(config, "output.path"),
                    ": output.path: ", path, " holds another run's results (", names_text(found), "); ",
                    how_to_go_on(config), "choose another output.path, or replace them with output.overwrite=true");
  for (const std::string& folder : output_names(config).saved) {
    if (!resumed) io::check_saving(folder);  // a resumed run uses the next free name
    BLIPFT_USER_CHECK(resumed || ::access(folder.c_str(), F_OK) != 0 || ::access(folder.c_str(), W_OK | X_OK) == 0, folder,
                      ": is to be replaced by the saved model, but you may not write to it: ", io::errno_text());
  }
  const std::string folder = checkpoints_folder(config);
  const std::vector<std::string> whole = checkpoints_in(folder);
  BLIPFT_USER_CHECK(resumed || !config.output.overwrite || whole.empty() || !is_link(folder), folder,
                    ": is a link, behind which are a run's checkpoints (", names_text(whole), "); output.overwrite ",
                    "removes nothing through a link. Give the folder itself, checkpoint.path=", resolved(folder).string(),
                    ", or take the link away");
}

void check_checkpoints(const RunSettings& config, const std::string& resumed) {
  const std::string folder = checkpoints_elsewhere(config);
  if (folder.empty()) return;
  const std::string location = location_of(config, "checkpoint.path"), own = resolved(in(config.output.path, kCheckpoints)).string();
  BLIPFT_USER_CHECK(!resolved(folder).string().starts_with(own + "/"), location, ": checkpoint.path: ", folder, " lies in ",
                    own, ", which is the run's own folder of checkpoints; leave checkpoint.path out, or choose another");
  const bool goes_on = !resumed.empty() && resolved(fs::path(resumed) / "..") == resolved(folder);
  const std::vector<std::string> there = checkpoints_in(folder);
  BLIPFT_USER_CHECK(goes_on || config.output.overwrite || there.empty(), location, ": checkpoint.path: ", folder,
                    " holds another run's checkpoints (", names_text(there),
                    "); choose another checkpoint.path, or replace them with output.overwrite=true");
}

void check_sources(const RunSettings& config, bool resumed) {
  std::vector<std::string> replaced;
  for (const std::string& folder : output_names(config).saved)
    for (const char* end : {"", ".partial", ".old"}) replaced.push_back(folder + end);
  if (!resumed)
    for (const std::string& folder : removed_models(config)) replaced.push_back(folder);
  if (replaces_results(config, resumed))
    for (const std::string& folder : {in(config.output.path, kCheckpoints), checkpoints_folder(config)})
      for (const std::string& name : checkpoints_in(folder)) replaced.push_back(in(folder, name));
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
                        location_of(config, source.key), ": ", source.key, ": ", source.path, " is read from ", folder,
                        ", which this run would replace; choose another output.path");
}

void check_names_free(const RunSettings& config, int64_t first_step, int64_t steps, int64_t ranks, bool resumed) {
  const auto refuse = [](const std::string& path, const std::string& why, const char* what) {
    throw UserError(concat(path, ": ", why, ", and it has the name of ", what, " that this run is going to write; move it ",
                           "away, or choose another folder"));
  };
  const std::string folder = checkpoints_folder(config);
  if (writes_checkpoints(config))
    for (const io::NamedCheckpoint& one : io::named_checkpoints(folder)) {
      const bool in_the_way = one.step > first_step && one.step <= steps && one.end != io::NamedCheckpoint::End::aside;
      if (in_the_way && !one.own) refuse(in(folder, one.name), one.why, "a checkpoint");
      if (in_the_way && !one.foreign.empty())
        refuse(in(folder, one.name), concat("holds ", one.foreign, ", which blipft did not write"), "a checkpoint");
    }
  if (!config.trace.enabled || resumed) return;
  std::set<std::string> own;
  for (const TraceFile& file : own_trace_files(config.output.path)) own.insert(fs::path(file.path).filename().string());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const std::string name = trace_file_name(0, rank), path = in(config.output.path, name);
    if (io::name_in_use(path) && !own.count(name)) refuse(path, "is no trace that blipft wrote", "a trace");
  }
}

// Removes the checkpoints that blipft wrote. Foreign files in such a folder are kept.
void remove_checkpoints(const std::string& folder) {
  if (is_link(folder)) return;
  for (const io::NamedCheckpoint& one : io::named_checkpoints(folder))
    if (one.own) io::remove_checkpoint(folder, one);
}

void remove_results(const RunSettings& config) {
  remove_trace_files(own_trace_files(config.output.path));
  remove_record_files(config.output.path);
  remove_checkpoints(in(config.output.path, kCheckpoints));
  if (!config.output.overwrite) return;
  remove_checkpoints(checkpoints_folder(config));  // where these are elsewhere, or under a name that is no link
  for (const std::string& model : removed_models(config)) io::remove_saved(model);
}

OutputFolder::OutputFolder(const RunSettings& config, const World& world) : config_(config), world_(world) {
  try {
    world_.run_agreeing_on_errors([&] {
      if (world_.rank() == 0) make_folders();
    });
    share_folders();
  } catch (...) {
    if (world_.rank() == 0) held_.release();  // no destructor runs for an object that was never made
    throw;
  }
}

OutputFolder::~OutputFolder() {
  if (world_.rank() == 0 || std::uncaught_exceptions() > 0) held_.release();
}

std::function<void()> OutputFolder::release() const {
  return [held = held_] { held.release(); };
}

// Several ranks may run this at the same time, and each may be killed at any point, because the end of one rank ends
// the run. So the lock is removed last: while it exists, every rank removes everything that is left.
void OutputFolder::Held::release() const {
  std::error_code error;
  if (!trial.empty() && !locks.empty() && locks.front().is_held())
    for (fs::directory_iterator item(trial, error), end; !error && item != end; item.increment(error))
      if (std::error_code ignored; item->path().filename() != FolderLock::kName) fs::remove_all(item->path(), ignored);
  for (const FolderLock& lock : locks) lock.remove();
  for (const std::string& folder : made) ::rmdir(folder.c_str());  // does not remove a folder that is not empty
}

void OutputFolder::claim(const std::string& resumed) {
  world_.run_agreeing_on_errors([&] {
    if (world_.rank() != 0) return;
    resumed_ = !resumed.empty();
    check_sources(config_, resumed_);
    check_checkpoints(config_, resumed);
    check_results(config_, resumed_);
    replaces_ = replaces_results(config_, resumed_);
  });
}

// Every run locks its folder of checkpoints, even a run that writes one only if it is stopped, because the
// checkpoint.path of another run may lead to the same folder. A folder that stays empty is removed when the run ends.
void OutputFolder::make_folders() {
  if (config_.smoke_steps > 0) make_trial();
  const std::string& output = config_.output.path;
  make_folder("output.path", output);
  held_.locks.push_back(FolderLock::take(output));  // this also shows that the folder can be written to
  for (const char* name : kSaved)
    if (const std::string done = io::restore_saved(in(output, name)); !done.empty())
      std::fprintf(stderr, "note: %s\n", done.c_str());
  const std::string folder = checkpoints_folder(config_);
  make_folder("checkpoint.path", folder);
  BLIPFT_USER_CHECK(::access(folder.c_str(), W_OK | X_OK) == 0, folder,
                    ": checkpoints are to be written there, but you may not: ", io::errno_text());
  if (!is_same(folder, output)) held_.locks.push_back(FolderLock::take(folder));
}

// Creates the folder of a trial on the disk that the run would write to. mkdtemp() creates a new folder that only this
// user may write to.
void OutputFolder::make_trial() {
  std::string& output = config_.output.path;
  std::error_code error;
  const fs::path around = without_slash(fs::absolute(output, error)).parent_path();
  std::string name = (around / ".smoke-XXXXXX").string();
  note_missing(around.string());
  fs::create_directories(around, error);
  BLIPFT_USER_CHECK(!error && ::mkdtemp(name.data()), location_of(config_, "output.path"), ": output.path: ", output,
                    ": cannot make a folder for the trial beside it, in ", around.string(), ": ",
                    error ? error.message() : io::errno_text(), "; give an output.path that you may write to");
  held_.made.insert(held_.made.begin(), name);
  held_.trial = output = name;
}

// Adds `path` and its parent folders to held_.made, as far as they do not exist yet.
void OutputFolder::note_missing(const std::string& path) {
  std::vector<std::string> made;
  std::error_code error;
  for (fs::path at = fs::absolute(path, error); !fs::exists(at, error) && at != at.root_path(); at = at.parent_path())
    if (at.has_filename()) made.push_back(at.string());
  held_.made.insert(held_.made.begin(), made.begin(), made.end());
}

void OutputFolder::make_folder(const std::string& key, const std::string& path) {
  std::error_code error;
  note_missing(path);
  BLIPFT_USER_CHECK(!is_link(path) || fs::exists(path, error), location_of(config_, key), ": ", key, ": ", path, " is a link to ",
                    fs::read_symlink(without_slash(path), error).string(),
                    ", where nothing is; make that folder (is its file system mounted?), or take the link away");
  error.clear();
  fs::create_directories(path, error);
  BLIPFT_USER_CHECK(!error && fs::is_directory(path), location_of(config_, key), ": ", key, ": cannot create the folder ",
                    path, ": ", error ? error.message() : "it is a file");
}

// Sends the folders and locks of rank 0 to all ranks, and checks that every rank sees the lock files: only then do all
// ranks use the same folder.
void OutputFolder::share_folders() {
  std::vector<std::string> paths, texts;
  for (const FolderLock& lock : held_.locks) paths.push_back(lock.path()), texts.push_back(lock.text());
  paths = texts_of_first_rank(world_, paths);
  texts = texts_of_first_rank(world_, texts);
  held_.made = texts_of_first_rank(world_, held_.made);
  held_.trial = world_.from_rank(0, held_.trial);
  if (!held_.trial.empty()) config_.output.path = held_.trial;
  held_.locks.clear();
  for (size_t i = 0; i < paths.size(); ++i) held_.locks.emplace_back(paths[i], texts[i]);
  const std::string host = world_.from_rank(0, world_.host());
  world_.run_agreeing_on_errors([&] {
    for (const FolderLock& lock : held_.locks)
      BLIPFT_USER_CHECK(lock.is_there(), fs::path(lock.path()).parent_path().string(),
                        ": is not the folder in which rank 0 on ", host, " works: its ", lock.path(),
                        " cannot be seen here; give output.path and checkpoint.path a file system that all ranks share, ",
                        "and as absolute paths");
  });
}

void OutputFolder::check_room(const std::function<std::vector<FileToWrite>()>& files) const {
  world_.run_agreeing_on_errors([&] {
    if (world_.rank() != 0) return;
    const std::string warning = blipft::check_room(config_, files(), reclaimed());
    if (!warning.empty()) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  });
}

// Returns the files that the run removes before it needs disk space for its own.
std::vector<FileToWrite> OutputFolder::reclaimed() const {
  std::vector<FileToWrite> goes;
  const std::string folder = checkpoints_folder(config_);
  if (replaces_) {
    for (const TraceFile& file : own_trace_files(config_.output.path)) goes.push_back({"", file.bytes, config_.output.path});
    for (const std::string& model : removed_models(config_)) goes.push_back({"", io::saved_model(model).bytes, model});
    if (const std::string own = in(config_.output.path, kCheckpoints); resolved(own) != resolved(folder) && !is_link(own))
      for (const io::NamedCheckpoint& one : io::named_checkpoints(own)) goes.push_back({"", one.bytes, own});
  }
  // A resumed run keeps complete checkpoints: checkpoints_to_write() has subtracted them.
  const bool all = replaces_ && config_.output.overwrite && !is_link(folder);
  for (const io::NamedCheckpoint& one : io::named_checkpoints(folder))
    if (all || !one.is_whole()) goes.push_back({"", one.bytes, folder});
  for (const std::string& model : output_names(config_).saved)
    goes.push_back({"", io::saved_model(model + ".partial").bytes, model});
  return goes;
}

void OutputFolder::check_names(int64_t first_step, int64_t steps) const {
  world_.run_agreeing_on_errors([&] {
    if (world_.rank() == 0) check_names_free(config_, first_step, steps, world_.size(), resumed_);
  });
}

void OutputFolder::remove_earlier() const {
  world_.run_agreeing_on_errors([&] {
    if (world_.rank() == 0 && replaces_) remove_results(config_);
  });
}

}  // namespace blipft
