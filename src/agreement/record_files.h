// The files by which a run folder explains itself: what they are called, whose they are, and how each is begun or gone on
// with.
//
//   config.yaml     the effective configuration; a run file that gives the same run
//   log.txt         what rank 0 printed, with times
//   metrics.jsonl   a row a step, a validation, an event
//
// The first line of each names the run that wrote it. A file without such a line is not this program's: nothing here
// writes to it, replaces or removes it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "agreement/run_id.h"
#include "io/line_file.h"

namespace blipft {

/// Returns the record files (config.yaml, log.txt, metrics.jsonl) in `folder` that a run of this program wrote.
std::vector<std::string> record_files_in(const std::string& folder);
/// Removes those of record_files_in(). Throws UserError.
void remove_record_files(const std::string& folder);

/// The last whole row of a run's metrics.jsonl; "" where it has none, or none of this program did write it.
std::string last_metrics_row(const std::string& folder);
/// The reason in the last row of a run that ended by itself: after its last step, or by early stopping.
constexpr const char* kDone = "done";

/// Files of one run in its folder. Each function throws UserError where the name is taken by a file that is not this
/// run's, or nothing can be written.
struct RecordFolder {
  std::string folder, run_id;
  /// Whole or not at all, in place of this run's older one.
  void write_config(const std::string& text) const;
  /// Begun with `heading` as its first line, or gone on with.
  std::unique_ptr<io::LineFile> open(const std::string& name, const std::string& heading,
                                     io::LineFile::LostText lost_text) const;
  /// Cuts metrics.jsonl off at its first row of a step from `first_step` on; returns how many rows that are.
  int64_t cut_metrics(int64_t first_step) const;
};

}  // namespace blipft
