// ConsoleQueue: standard output and standard error, written by a thread of their own.
//
// Adding text never waits for the reader. A terminal that was stopped, a pager, or a pipe whose reader sleeps takes nothing;
// then text waits in a queue of limited size, and what does not fit is dropped in whole lines and counted. Once the reader
// takes text again, a line says how many lines are missing.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string_view>

namespace blipft::io {

class ConsoleQueue {
 public:
  /// `max_bytes`: of text that waits, of both streams together.
  explicit ConsoleQueue(size_t max_bytes = size_t{1} << 18);
  /// Does not wait for text that was not written; see settle().
  ~ConsoleQueue();
  ConsoleQueue(const ConsoleQueue&) = delete;
  ConsoleQueue& operator=(const ConsoleQueue&) = delete;

  /// Queues text for the open file `descriptor`, STDOUT_FILENO or STDERR_FILENO. Text of both keeps its order while both take
  /// text. Thread-safe.
  void add(int descriptor, std::string_view text);
  /// Waits until all text is written, as long as some is written at least every `max_wait`. Returns false if the reader took
  /// nothing for that long.
  bool settle(std::chrono::milliseconds max_wait);

 private:
  struct State;
  std::shared_ptr<State> state_;           // shared with the thread, which may outlive this object
};

}  // namespace blipft::io
