// LineFile: a text file to which a background thread appends lines.
//
// Adding a line never waits for the disk. The thread writes the line at once; from then on the line survives a crash of
// the process. If the disk is full or hangs, lines are lost, but the caller never waits. Lost lines are counted, and a
// line in the file reports their number once the disk accepts lines again.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "io/file.h"

namespace blipft::io {

class LineFile {
 public:
  /// Returns the text that is written instead of `lost` lines, without a line end.
  using LostText = std::function<std::string(int64_t lost)>;
  /// Appends after the last complete line of `file`, which must be open for reading and writing. A partial line at the
  /// end is cut off. No other process may write to the file. Throws UserError.
  LineFile(FileDescriptor file, const std::string& path, LostText lost_text);
  /// Waits a few seconds at most for lines that are not written yet.
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  /// `line` must not contain a line end. Thread-safe.
  void add(std::string line);
  /// Waits until every line added so far is written or lost. Returns false if this took longer than `maximum`.
  bool wait_until_written(std::chrono::milliseconds maximum);
  /// Returns the reason why the first lost line was lost ("FILE: No space left on device"), or "" if no line was lost.
  std::string failure() const;
  const std::string& path() const;

 private:
  struct State;
  std::shared_ptr<State> state_;           // shared with the thread, which may outlive this object if the disk hangs
};

}  // namespace blipft::io
