// Writes to the console in a background thread; see console_queue.h.
#include "io/console_queue.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

namespace blipft::io {

namespace {

constexpr int kPollMilliseconds = 50;
constexpr size_t kMaxLineRest = 4096;        // bytes above the limit, for the rest of a line whose beginning is already
                                             // queued
// If the stream with the older text accepts nothing for this time, the other stream may write first.
constexpr std::chrono::milliseconds kOtherStreamAfter{200};

struct Entry {
  int64_t number = 0;                        // sequence number over both streams
  std::string text;
};

// One output stream and its text that is not written yet.
struct Stream {
  int descriptor = -1;
  std::deque<Entry> entries;
  int64_t dropped_lines = 0;                 // lines dropped since the last text that was queued
  bool inside_dropped_line = false;          // true until the end of the dropped line arrives
  bool at_line_start = true;                 // true if the queued text ends with a line end

  static bool ends_line(std::string_view text) { return text.ends_with('\n') || text.ends_with('\r'); }
  // Returns the size of the first line including its line end; the size of the whole text if it has no line end.
  static size_t first_line(std::string_view text) { return std::min(text.find_first_of("\r\n"), text.size() - 1) + 1; }
  void drop(std::string_view text) {
    dropped_lines += std::count_if(text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; });
    if (!text.empty()) inside_dropped_line = !ends_line(text);
  }
};

}  // namespace

struct ConsoleQueue::State {
  explicit State(size_t bytes) : max_bytes(bytes) {
    streams[0].descriptor = STDOUT_FILENO;
    streams[1].descriptor = STDERR_FILENO;
  }
  const size_t max_bytes;
  std::mutex mutex;                          // guards all members below
  std::condition_variable changed;
  std::array<Stream, 2> streams;
  size_t waiting_bytes = 0;
  int64_t next_number = 0, written_bytes = 0;
  bool ends = false;

  bool is_empty() const { return streams[0].entries.empty() && streams[1].entries.empty(); }
  void queue(Stream& stream, std::string_view text) {
    if (text.empty()) return;
    stream.entries.push_back({next_number++, std::string(text)});
    waiting_bytes += text.size();
    stream.at_line_start = Stream::ends_line(text);
  }
  void work();
  Stream* choose(std::unique_lock<std::mutex>& lock);
  void write_some(std::unique_lock<std::mutex>& lock, Stream& stream);
};

// Returns the stream that has the oldest text and accepts output, or null if neither stream accepts output now.
Stream* ConsoleQueue::State::choose(std::unique_lock<std::mutex>& lock) {
  Stream *first = &streams[0], *second = &streams[1];
  if (first->entries.empty() ||
      (!second->entries.empty() && second->entries.front().number < first->entries.front().number))
    std::swap(first, second);
  const bool both = !second->entries.empty();
  std::array<pollfd, 2> polled{pollfd{first->descriptor, POLLOUT, 0}, pollfd{second->descriptor, POLLOUT, 0}};
  lock.unlock();
  int ready = ::poll(polled.data(), 1, both ? static_cast<int>(kOtherStreamAfter.count()) : kPollMilliseconds);
  const bool takes_first = ready > 0;
  if (!takes_first && both) ready = ::poll(&polled[1], 1, 0);
  lock.lock();
  if (takes_first) return first;
  return both && ready > 0 ? second : nullptr;
}

// Writes as much as the stream accepts without blocking: a pipe that poll() reports as ready accepts PIPE_BUF bytes.
void ConsoleQueue::State::write_some(std::unique_lock<std::mutex>& lock, Stream& stream) {
  const std::string piece = stream.entries.front().text.substr(0, PIPE_BUF);
  lock.unlock();
  const ssize_t count = ::write(stream.descriptor, piece.data(), piece.size());
  const int error = errno;
  lock.lock();
  if (count < 0 && (error == EINTR || error == EAGAIN)) return;
  std::string& text = stream.entries.front().text;
  // After an error (the reader has exited, the disk is full) the text is lost, as in any other program.
  const size_t done = count < 0 ? text.size() : static_cast<size_t>(count);
  waiting_bytes -= done;
  written_bytes += static_cast<int64_t>(done);
  text.erase(0, done);
  if (text.empty()) stream.entries.pop_front();
  changed.notify_all();
}

void ConsoleQueue::State::work() {
  std::unique_lock<std::mutex> lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return ends || !is_empty(); });
    if (ends && is_empty()) return;
    if (Stream* const stream = choose(lock)) write_some(lock, *stream);
    else if (ends) return;
  }
}

ConsoleQueue::ConsoleQueue(size_t max_bytes) : state_(std::make_shared<State>(max_bytes)) {
  sigset_t all, before;                      // blocks all signals in the new thread; other threads handle them
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([state = state_] { state->work(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ConsoleQueue::~ConsoleQueue() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->ends = true;
  state_->changed.notify_all();
}

void ConsoleQueue::add(int descriptor, std::string_view text) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  Stream& stream = state_->streams[descriptor == STDERR_FILENO ? 1 : 0];
  if (stream.inside_dropped_line && !text.empty()) {
    const size_t end = Stream::first_line(text);
    stream.drop(text.substr(0, end));
    text.remove_prefix(end);
  }
  if (text.empty()) return;
  if (state_->waiting_bytes + text.size() > state_->max_bytes) {
    const size_t rest = stream.at_line_start ? 0 : Stream::first_line(text);
    if (rest > 0 && state_->waiting_bytes + rest <= state_->max_bytes + kMaxLineRest) {
      state_->queue(stream, text.substr(0, rest));
      text.remove_prefix(rest);
    }
    return stream.drop(text);
  }
  if (stream.dropped_lines > 0) {
    state_->queue(stream, (stream.at_line_start ? "[" : "\n[") + std::to_string(stream.dropped_lines) +
                              (stream.dropped_lines == 1 ? " line is" : " lines are") +
                              " missing here: the output was not read]\n");
    stream.dropped_lines = 0;
  }
  state_->queue(stream, text);
  state_->changed.notify_all();
}

bool ConsoleQueue::wait_until_written(std::chrono::milliseconds max_wait) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  while (!state_->is_empty()) {
    const int64_t before = state_->written_bytes;
    state_->changed.wait_for(lock, max_wait, [&] { return state_->written_bytes != before; });
    if (state_->written_bytes == before) return false;
  }
  return true;
}

}  // namespace blipft::io
