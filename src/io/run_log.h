// RunLog: copies everything that rank 0 prints to a file, each line with its time.
//
// All of the process' standard output and standard error that passes through stdio is copied: the header, progress,
// warnings, and the error that ends the run. Lines that are printed before the log file is known wait in memory.
#pragma once

#include <memory>
#include <string>

#include "io/line_file.h"

namespace blipft {

/// Starts copying stdout and stderr, until the end of the process. Both are written by a background thread
/// (io::ConsoleQueue): if a reader accepts no output, printed lines may be lost on the console, but not in the log, and
/// the program does not wait. Call this once. `copies` is false on a rank whose lines are not logged.
void start_run_log(bool copies);
/// Sets the log file. It receives `heading` as a line without a time, then all lines copied before and from now on.
void set_run_log(std::unique_ptr<io::LineFile> file, const std::string& heading);
/// Returns the reason why a line of the log was lost, or "" if no line was lost or there is no log.
std::string run_log_failure();

/// Collects printed text into lines for a log. A progress line on a terminal is overwritten many times; the log takes
/// one of these lines every `seconds`, and the last.
class PrintedLines {
 public:
  using Take = std::function<void(const std::string& line)>;
  PrintedLines(double seconds, Take take) : seconds_(seconds), take_(std::move(take)) {}
  /// Adds text that was printed at `time`, in seconds.
  void add(std::string_view text, double time);

 private:
  void end_line(bool repeated, double time);
  double seconds_;
  Take take_;
  std::string line_;
  double reported_ = -1e300;                   // time at which an overwritten line was last logged
};

}  // namespace blipft
