// ConsoleQueue: a background thread that writes standard output and standard error.
//
// Adding text never waits for the reader. A stopped terminal, a pager, or a pipe whose reader sleeps accepts no output.
// In this case text waits in a queue of limited size. Text beyond the limit is dropped in whole lines, and the dropped
// lines are counted. Once the reader accepts text again, a line reports the number of missing lines.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string_view>

namespace blipft::io {

class ConsoleQueue {
 public:
  /// `max_bytes`: limit of the waiting text of both streams together.
  explicit ConsoleQueue(size_t max_bytes = size_t{1} << 18);
  /// Does not wait for unwritten text; see settle().
  ~ConsoleQueue();
  ConsoleQueue(const ConsoleQueue&) = delete;
  ConsoleQueue& operator=(const ConsoleQueue&) = delete;

  /// Queues text for the open file `descriptor`, STDOUT_FILENO or STDERR_FILENO. The order of text between both streams
  /// is kept while both accept output. Thread-safe.
  void add(int descriptor, std::string_view text);
  /// Waits until all text is written, as long as some text is written at least every `max_wait`. Returns false if the
  /// reader accepted nothing for that time.
  bool wait_until_written(std::chrono::milliseconds max_wait);

 private:
  struct State;
  std::shared_ptr<State> state_;           // shared with the thread, which may outlive this object
};

}  // namespace blipft::io
