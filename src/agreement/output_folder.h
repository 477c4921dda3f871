// OutputFolder: the folders of a run, from their claim before anything is read to their release at the end.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "agreement/disk_room.h"
#include "agreement/folder_lock.h"
#include "blipft/comm.h"
#include "blipft/run_settings.h"

namespace blipft {

/// Returns the names of the results of this program in `folder`: traces, model, adapter and checkpoints.
std::vector<std::string> results_in(const std::string& folder);
/// Names of the whole checkpoints of this program in `folder`.
std::vector<std::string> checkpoints_in(const std::string& folder);
/// The names of what a run writes.
struct OutputNames {
  std::string folder;                      ///< output.path, with traces and record files
  std::string checkpoints;                 ///< the folder of checkpoints
  std::vector<std::string> saved;          ///< folders of the saved adapter and model, in the order in which they are saved
};
OutputNames output_names(const RunSettings& config);
/// Returns true if `folder` holds a whole checkpoint, from which a run could resume. A damaged one counts too.
bool has_whole_checkpoint(const std::string& folder);
/// Returns the folder of checkpoints if it is not output.path/checkpoints, else "".
std::string checkpoints_elsewhere(const RunSettings& config);
/// Returns true if the run removes the results of another run in output.path: with output.overwrite unless it resumes,
/// and with checkpoint.resume=auto if that run ended before its first whole checkpoint and saved no model or adapter.
bool replaces_results(const RunSettings& config, bool resumed);
/// Throws UserError, with what is there and what to do, where output.path holds another run's results, and the run is
/// neither resumed nor may overwrite them (output.overwrite); or where what it saves may not be replaced.
void check_results(const RunSettings& config, bool resumed);
/// Checks the checkpoints in a checkpoint.path outside of output.path like check_results(); only output.overwrite
/// removes some there. `resumed`: the checkpoint from which the run resumes, "": none; the others are its own too.
void check_checkpoints(const RunSettings& config, const std::string& resumed);
/// Throws UserError if saving or overwriting would replace inputs of the run: model.path, adapter.path,
/// data.path, data.val_path, or a folder around one of them, under whatever name.
void check_sources(const RunSettings& config, bool resumed);
/// Throws UserError where something has a name that the run needs, and is not this program's: a checkpoint of a step after
/// `first_step` up to `steps`, a trace of one of its ranks.
void check_names_free(const RunSettings& config, int64_t first_step, int64_t steps, int64_t ranks, bool resumed);
/// Removes what replaces_results() means: traces and checkpoints that this program has written, and with output.overwrite
/// also models that this run will not replace (those it will stay until then). Nothing else, and nothing through a link.
/// Throws UserError.
void remove_results(const RunSettings& config);

/// The folders that a run owns: output.path and the folder of checkpoints. A trial (--smoke) owns a new temporary folder
/// next to output.path instead. All ranks make all calls, which throw AgreedError; rank 0 alone reads and changes the
/// folders.
class OutputFolder {
 public:
  /// Makes the folders and locks them: from now on no other run changes what is there.
  OutputFolder(const RunSettings& config, const World& world);
  /// Releases the folders. On an error any rank does: rank 0 may be ended before it can.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  /// output.path, or the temporary folder of a trial.
  const std::string& path() const { return config_.output.path; }
  /// Checks all that the configuration tells: check_sources, check_results, check_checkpoints. `resumed`: the checkpoint
  /// from which the run goes on with what is there; "": none.
  void claim(const std::string& resumed);
  /// Returns a function that releases the folders where no destructor will run, on any rank: it removes the locks, folders
  /// that were made here and are empty, and the folder of a trial with all that is in it. It never throws.
  std::function<void()> release() const;
  /// `files` is called on rank 0.
  void check_room(const std::function<std::vector<FileToWrite>()>& files) const;
  /// check_names_free(), once the steps are known.
  void check_names(int64_t first_step, int64_t steps) const;
  /// Once nothing else can refuse the run: removes the results that it overwrites.
  void remove_earlier() const;

 private:
  struct Held {
    std::vector<FolderLock> locks;         // that of output.path is the first
    std::vector<std::string> made;         // folders, the innermost first
    std::string trial;                     // the temporary folder; empty: this is no trial
    void release() const;
  };
  void make_folders();
  void make_trial();
  void note_missing(const std::string& path);
  void make_folder(const std::string& key, const std::string& path);
  void share_folders();
  std::vector<FileToWrite> reclaimed() const;
  RunSettings config_;
  const World& world_;
  Held held_;                              // on all ranks
  bool resumed_ = false;                   // argument of claim(); on rank 0
  bool replaces_ = false;                  // replaces_results(); on rank 0
};

}  // namespace blipft
