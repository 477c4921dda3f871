// LineFile: a text file that grows line by line beside other work.
//
// Adding a line never waits for the disk: a thread of its own writes it, at once, so that it outlives the process from
// then on. A disk that is full or hangs costs lines, never the work: lost ones are counted, and told in the file once it
// takes lines again.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "io/file.h"

namespace blipft::io {

class LineFile {
 public:
  /// What stands in the file in place of lines that were lost; without a line's end.
  using LostText = std::function<std::string(int64_t lost)>;
  /// Goes on behind the last whole line of `file`, which is open for reading and writing; what lies behind that is cut
  /// off. Nobody else writes to it. Throws UserError.
  LineFile(FileDescriptor file, const std::string& path, LostText lost_text);
  /// Waits for lines that are not written yet, some seconds at most.
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  /// `line` has no line's end. Thread-safe.
  void add(std::string line);
  /// Waits until every line so far is written or lost; false: it took longer than `most`.
  bool settle(std::chrono::milliseconds most);
  /// Why the first lost line was lost: "FILE: No space left on device"; "": none was.
  std::string failure() const;
  const std::string& path() const;

 private:
  struct State;
  std::shared_ptr<State> state_;           // its thread's too, which may outlive this on a disk that hangs
};

}  // namespace blipft::io
