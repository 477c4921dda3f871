// The record files of a run folder: how they are found, created, continued and removed.
//
//   config.yaml     the effective configuration, as a run file that starts the same run
//   log.txt         the output of rank 0, with times
//   metrics.jsonl   one JSON row for each step, validation and event
//
// The first line of each file has the id of the run that wrote it. A file without such a line was not written by this
// program: it is never changed, replaced or removed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "agreement/run_id.h"
#include "io/line_file.h"

namespace blipft {

/// Returns the record files (config.yaml, log.txt, metrics.jsonl) in `folder` that a run of this program wrote.
std::vector<std::string> record_files_in(const std::string& folder);
/// Removes the files that record_files_in() returns. Throws UserError.
void remove_record_files(const std::string& folder);

/// Returns the last complete row of metrics.jsonl; "" if there is none, or if this program did not write the file.
std::string last_metrics_row(const std::string& folder);
/// The reason in the last row of a run that ended by itself: after its last step, or by early stopping.
constexpr const char* kDone = "done";

/// The record files of one run. Each function throws UserError if another run or another program wrote a file of that
/// name, or if the file cannot be written.
struct RecordFolder {
  std::string folder, run_id;
  /// Writes config.yaml. It replaces the older file of this run in one step (rename).
  void write_config(const std::string& text) const;
  /// Opens the file to append lines. A new file begins with the line `heading`; an incomplete last line of an existing
  /// file is cut off (LineFile).
  std::unique_ptr<io::LineFile> open(const std::string& name, const std::string& heading,
                                     io::LineFile::LostText lost_text) const;
  /// Cuts off metrics.jsonl from its first row about a step >= `first_step` on. Returns the number of removed rows.
  int64_t cut_metrics(int64_t first_step) const;
};

}  // namespace blipft
