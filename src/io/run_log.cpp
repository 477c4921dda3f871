// Copies printed lines to the log; see run_log.h.
#include "io/run_log.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <mutex>

#include "blipft/error.h"
#include "io/console_queue.h"

namespace blipft {

namespace {

constexpr double kRepeatedEvery = 2;       // seconds between logged lines of a progress display that overwrites itself
constexpr size_t kMaxKept = size_t{1} << 20;  // bytes of lines that wait until the log file is known
constexpr std::chrono::milliseconds kErrorTime{300}, kEndTime{1000};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// "2026-11-24T03:15:03.125+01:00"
std::string time_text() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm local{};
  ::localtime_r(&now.tv_sec, &local);
  char date[32], text[128];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &local);
  const long minutes = local.tm_gmtoff / 60, size = minutes < 0 ? -minutes : minutes;
  std::snprintf(text, sizeof text, "%s.%03ld%c%02ld:%02ld", date, now.tv_nsec / 1'000'000, minutes < 0 ? '-' : '+',
                size / 60, size % 60);
  return text;
}

// Never destroyed, because the last line is printed after all other objects are destroyed.
struct RunLog {
  std::mutex mutex;                        // guards all members below
  std::deque<std::string> kept;
  size_t kept_bytes = 0;
  bool copies = true;                      // false: the lines of this rank are not logged
  std::shared_ptr<io::LineFile> file;
  io::ConsoleQueue console;                // training never waits for a reader of its output
  PrintedLines out{kRepeatedEvery, [this](const std::string& line) { take(line); }};
  PrintedLines error{kRepeatedEvery, [this](const std::string& line) { take(line); }};

  void take(const std::string& line) {
    if (!copies) return;
    std::string text = time_text() + "  " + line;
    if (file) return file->add(std::move(text));
    kept_bytes += text.size();
    if (kept_bytes <= kMaxKept) kept.push_back(std::move(text));
  }
  std::shared_ptr<io::LineFile> file_now() {
    const std::lock_guard<std::mutex> lock(mutex);
    return file;
  }
};

RunLog* the_log = nullptr;

ssize_t write_out(void*, const char* data, size_t bytes) {
  the_log->console.add(STDOUT_FILENO, {data, bytes});
  const std::lock_guard<std::mutex> lock(the_log->mutex);
  the_log->out.add({data, bytes}, seconds_now());
  return static_cast<ssize_t>(bytes);
}

// Waits for the writers, because MPI may end the process directly after an error message.
ssize_t write_error(void*, const char* data, size_t bytes) {
  the_log->console.add(STDERR_FILENO, {data, bytes});
  {
    const std::lock_guard<std::mutex> lock(the_log->mutex);
    the_log->error.add({data, bytes}, seconds_now());
  }
  the_log->console.wait_until_written(kErrorTime);
  if (const auto file = the_log->file_now()) file->wait_until_written(kErrorTime);
  return static_cast<ssize_t>(bytes);
}

void end_log() {
  std::fflush(nullptr);
  the_log->console.wait_until_written(kEndTime);
  if (const auto file = the_log->file_now()) file->wait_until_written(kEndTime);
}

// glibc allows assigning stdout and stderr. The old streams stay open for code that still uses them.
void replace(FILE*& stream, cookie_write_function_t* write, int mode) {
  std::fflush(stream);
  FILE* copied = ::fopencookie(nullptr, "w", {nullptr, write, nullptr, nullptr});
  if (!copied) return;                     // without a log if the stream cannot be created
  std::setvbuf(copied, nullptr, mode, BUFSIZ);
  stream = copied;
}

}  // namespace

void PrintedLines::add(std::string_view text, double time) {
  for (const char c : text) {
    if (c == '\n') end_line(false, time);
    else if (c == '\r') end_line(true, time);
    else line_ += c;
  }
}

void PrintedLines::end_line(bool repeated, double time) {
  constexpr std::string_view kClear = "\033[K";
  if (line_.starts_with(kClear)) line_.erase(0, kClear.size());
  if (!line_.empty() && (!repeated || time - reported_ >= seconds_)) {
    take_(line_);
    if (repeated) reported_ = time;
  }
  line_.clear();
}

void start_run_log(bool copies) {
  if (the_log) return;
  the_log = new RunLog;
  the_log->copies = copies;
  std::atexit(end_log);
  replace(stdout, write_out, ::isatty(STDOUT_FILENO) == 1 ? _IOLBF : _IOFBF);
  replace(stderr, write_error, _IONBF);
}

void set_run_log(std::unique_ptr<io::LineFile> file, const std::string& heading) {
  if (!the_log) return;
  const std::lock_guard<std::mutex> lock(the_log->mutex);
  the_log->file = std::move(file);
  the_log->file->add(heading);
  for (std::string& line : the_log->kept) the_log->file->add(std::move(line));
  the_log->kept.clear();
}

std::string run_log_failure() {
  const auto file = the_log ? the_log->file_now() : nullptr;
  return file ? file->failure() : "";
}

}  // namespace blipft
