// OutputFolder: the folders that a run writes to. A run locks them before it reads anything, checks that it may write
// there, and releases them at its end.
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
/// Returns the names of the complete checkpoints of this program in `folder`.
std::vector<std::string> checkpoints_in(const std::string& folder);
/// The folders that a run writes to.
struct OutputNames {
  std::string folder;                      ///< output.path, with traces and record files
  std::string checkpoints;                 ///< the folder of checkpoints
  std::vector<std::string> saved;          ///< folders of the saved adapter and model, in the order of saving
};
OutputNames output_names(const RunSettings& config);
/// Returns true if `folder` has a complete checkpoint of this program, or an entry that may be a damaged one.
bool has_whole_checkpoint(const std::string& folder);
/// Returns the folder of checkpoints if it is not output.path/checkpoints, else "".
std::string checkpoints_elsewhere(const RunSettings& config);
/// Returns true if the run removes the results of another run in output.path: with output.overwrite unless it resumes,
/// and with checkpoint.resume=auto if that run ended before its first whole checkpoint and saved no model or adapter.
bool replaces_results(const RunSettings& config, bool resumed);
/// Throws UserError if output.path has the results of another run and the run may not replace them: it does not resume,
/// and replaces_results() is false. Also throws if a folder that the run saves to exists and may not be replaced, or if
/// output.overwrite would remove checkpoints behind a link. The message lists what was found and how to continue.
void check_results(const RunSettings& config, bool resumed);
/// Checks a checkpoint.path outside of output.path, like check_results(). Checkpoints there are only removed with
/// output.overwrite. `resumed`: the checkpoint from which the run resumes, "": none; if it is in that folder, the other
/// checkpoints there belong to the run too.
void check_checkpoints(const RunSettings& config, const std::string& resumed);
/// Throws UserError if saving or overwriting would replace inputs of the run: model.path, adapter.path,
/// data.path, data.val_path, data.pictures, or a folder that contains one of them, also if a link leads there.
void check_sources(const RunSettings& config, bool resumed);
/// Throws UserError if a file or folder that this program did not write has a name that the run needs: that of a
/// checkpoint after `first_step` and up to `steps`, or that of a rank's trace.
void check_names_free(const RunSettings& config, int64_t first_step, int64_t steps, int64_t ranks, bool resumed);
/// Removes the results that the run replaces (see replaces_results()): traces, record files and checkpoints that this
/// program has written. With output.overwrite it also removes saved models, except those that this run will replace
/// when it saves. It removes nothing else, and nothing through a link. Throws UserError.
void remove_results(const RunSettings& config);

/// The folders that a run owns: output.path and the folder of checkpoints. A trial (--smoke) owns a new temporary
/// folder next to output.path instead. All ranks call every function, which throws AgreedError; only rank 0 reads and
/// changes the folders.
class OutputFolder {
 public:
  /// Creates the folders and locks them: from now on no other run changes their contents.
  OutputFolder(const RunSettings& config, const World& world);
  /// Releases the folders: on rank 0, and during an exception on every rank, because rank 0 may be ended first.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  /// output.path, or the temporary folder of a trial.
  const std::string& path() const { return config_.output.path; }
  /// Checks the folders against the configuration: check_sources(), check_checkpoints(), check_results(). `resumed`:
  /// the checkpoint from which the run resumes; "": none.
  void claim(const std::string& resumed);
  /// Returns a function that releases the folders if no destructor will run, on any rank: it removes the locks, the
  /// empty folders that this object has created, and the folder of a trial with its contents. It never throws.
  std::function<void()> release() const;
  /// Checks that the disks have space for the files that `files` returns; see disk_room.h. `files` is called on rank 0.
  void check_room(const std::function<std::vector<FileToWrite>()>& files) const;
  /// Calls check_names_free(). Call it when the number of steps is known.
  void check_names(int64_t first_step, int64_t steps) const;
  /// Calls remove_results() if the run replaces results. Call it when no other check can refuse the run any more.
  void remove_earlier() const;

 private:
  struct Held {
    std::vector<FolderLock> locks;         // the lock of output.path is the first
    std::vector<std::string> made;         // folders that did not exist before, the innermost first
    std::string trial;                     // the temporary folder of a trial; empty: this is no trial
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
