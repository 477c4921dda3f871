// Writes lines to the disk in a background thread; see line_file.h.
#include "io/line_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "blipft/error.h"

namespace blipft::io {

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMaxWaiting = size_t{16} << 20;  // bytes; lines beyond are lost: the disk hangs
// A network file system shows lines to other machines after this time at the latest.
constexpr std::chrono::seconds kSyncEvery{5};
constexpr std::chrono::seconds kCloseTime{3};
constexpr int64_t kPiece = int64_t{1} << 16;

// Returns the offset of the end of the last complete line.
int64_t end_of_lines(const FileDescriptor& file, const std::string& path) {
  std::string piece;
  for (int64_t end = file_size(file, path); end > 0;) {
    const int64_t begin = std::max<int64_t>(0, end - kPiece);
    piece.resize(static_cast<size_t>(end - begin));
    read_at(file, begin, piece.data(), end - begin, path);
    if (const size_t at = piece.rfind('\n'); at != std::string::npos) return begin + static_cast<int64_t>(at) + 1;
    end = begin;
  }
  return 0;
}

}  // namespace

struct LineFile::State {
  FileDescriptor file;
  std::string path;
  LostText lost_text;
  int64_t end = 0;                         // bytes of complete lines; only the thread uses end and lost_before
  int64_t lost_before = 0;                 // lines lost since the last line that was written

  mutable std::mutex mutex;                // guards all members below; never held while waiting for the disk
  std::condition_variable changed;
  std::deque<std::string> waiting;
  size_t waiting_bytes = 0;
  int64_t dropped = 0;                     // lines that were lost because the queue was full
  bool writing = false, closing = false;
  std::string failure;

  void fail();
  bool write(const std::string& text);
  void write_line(const std::string& line);
  void run();
};

void LineFile::State::fail() {
  const std::string why = errno_text();
  const std::lock_guard<std::mutex> lock(mutex);
  if (failure.empty()) failure = concat(path, ": ", why);
}

// Writes all of `text` or none of it, so that a line that does not fit leaves no partial line.
bool LineFile::State::write(const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::pwrite(file.get(), text.data() + done, text.size() - done, end + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  if (done == text.size()) {
    end += static_cast<int64_t>(done);
    return true;
  }
  fail();
  // If truncation fails as well, the next line overwrites the partial text.
  [[maybe_unused]] const int cut = done > 0 ? ::ftruncate(file.get(), end) : 0;
  return false;
}

void LineFile::State::write_line(const std::string& line) {
  if (lost_before > 0 && write(lost_text(lost_before) + "\n")) lost_before = 0;
  if (lost_before > 0 || !write(line + "\n")) ++lost_before;
}

void LineFile::State::run() {
  Clock::time_point synced = Clock::now();
  bool unsynced = false;
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    const auto something = [&] { return closing || !waiting.empty(); };
    if (unsynced) changed.wait_until(lock, synced + kSyncEvery, something);
    else changed.wait(lock, something);
    if (closing && waiting.empty()) return;
    std::deque<std::string> lines;
    lines.swap(waiting);
    waiting_bytes = 0;
    lost_before += std::exchange(dropped, 0);
    writing = true;
    lock.unlock();
    for (const std::string& line : lines) write_line(line);
    unsynced = unsynced || !lines.empty();
    if (unsynced && Clock::now() >= synced + kSyncEvery) {
      if (::fdatasync(file.get()) != 0 && errno != EINVAL && errno != EROFS) fail();  // network file systems report
                                                                                      // write errors late
      synced = Clock::now(), unsynced = false;
    }
    lock.lock();
    writing = false;
    changed.notify_all();
  }
}

LineFile::LineFile(FileDescriptor file, const std::string& path, LostText lost_text)
    : state_(std::make_shared<State>()) {
  state_->file = std::move(file);
  state_->path = path;
  state_->lost_text = std::move(lost_text);
  state_->end = end_of_lines(state_->file, path);
  BLIPFT_USER_CHECK(::ftruncate(state_->file.get(), state_->end) == 0, path, ": cannot be continued: ", errno_text());
  std::thread([state = state_] { state->run(); }).detach();
}

LineFile::~LineFile() {
  wait_until_written(kCloseTime);
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->closing = true;
  state_->changed.notify_all();
}

void LineFile::add(std::string line) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->waiting_bytes + line.size() > kMaxWaiting) {
    ++state_->dropped;
    if (state_->failure.empty()) state_->failure = concat(state_->path, ": the disk takes nothing for too long");
    return;
  }
  state_->waiting_bytes += line.size();
  state_->waiting.push_back(std::move(line));
  state_->changed.notify_all();
}

bool LineFile::wait_until_written(std::chrono::milliseconds maximum) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  return state_->changed.wait_for(lock, maximum, [&] { return state_->waiting.empty() && !state_->writing; });
}

std::string LineFile::failure() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->failure;
}

const std::string& LineFile::path() const { return state_->path; }

}  // namespace blipft::io
