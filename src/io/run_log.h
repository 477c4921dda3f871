// RunLog: what rank 0 prints goes into a file too, each line with its time.
//
// All of the process' standard output and standard error that goes through stdio is copied, whoever printed it: the header,
// progress, warnings, and the error that ends the run. What is printed before there is a file waits for it.
#pragma once

#include <memory>
#include <string>

#include "io/line_file.h"

namespace blipft {

/// From here to the end of the process stdout and stderr are copied, and written by a thread (io::ConsoleQueue): a reader that
/// takes nothing costs lines of what is printed, not of the log, and never time. Called once. `copies`: false on a rank whose
/// lines go into no log.
void start_run_log(bool copies);
/// The file that takes what was copied so far and what follows. `heading` comes first, as a line without a time.
void set_run_log(std::unique_ptr<io::LineFile> file, const std::string& heading);
/// Why a line of the log was lost; "": none was, or there is no log.
std::string run_log_failure();

/// Lines of what a program prints, for a log. On a terminal a line is printed again and again over itself; of these the
/// log takes one every `seconds`, and the last.
class PrintedLines {
 public:
  using Take = std::function<void(const std::string& line)>;
  PrintedLines(double seconds, Take take) : seconds_(seconds), take_(std::move(take)) {}
  /// What was printed at a time in seconds.
  void add(std::string_view text, double time);

 private:
  void end_line(bool repeated, double time);
  double seconds_;
  Take take_;
  std::string line_;
  double told_ = -1e300;                   // when a line that was printed over was taken
};

}  // namespace blipft
