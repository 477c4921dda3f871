// Times of the program's start; see start_times.h.
#include "base/start_times.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace blipft {

namespace {

// Returns the age of this process with a resolution of 10 ms, or 0 if /proc does not report it.
double process_age() {
  std::ifstream stat("/proc/self/stat"), uptime("/proc/uptime");
  std::string line;
  double now = 0;
  if (!std::getline(stat, line) || !(uptime >> now)) return 0;
  // The program's name, in brackets, may contain any character. Field 22, the start in clock ticks, is the 20th field
  // after the name.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < 19; ++i) fields >> skipped;
  double ticks = 0;
  if (!(fields >> ticks)) return 0;
  return std::max(0.0, now - ticks / static_cast<double>(sysconf(_SC_CLK_TCK)));
}

constexpr double kMinSeconds = 0.01;     // minimum duration of a part that is reported

std::string list(const std::vector<StartTimes::Part>& parts) {
  std::string text;
  for (const auto& [name, seconds] : parts) {
    if (seconds < kMinSeconds) continue;
    char part[64];
    std::snprintf(part, sizeof part, "%s%s %.2f s", text.empty() ? "" : ", ", name.c_str(), seconds);
    text += part;
  }
  return text;
}

}  // namespace

StartTimes::StartTimes() : last_(Clock::now()) {
  const double age = process_age();
  begin_ = last_ - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(age));
  parts_.push_back({"launch", age});
}

void StartTimes::part(const std::string& name) {
  const Clock::time_point now = Clock::now();
  parts_.push_back({name, std::chrono::duration<double>(now - last_).count()});
  last_ = now;
}

double StartTimes::seconds() const { return seconds_since(begin_); }

std::string StartTimes::text() const {
  char ready[48];
  std::snprintf(ready, sizeof ready, ", ready after %.2f s", seconds());
  const std::string beside = list(beside_);
  return list(parts_) + (beside.empty() ? "" : " (beside them: " + beside + ")") + ready;
}

BackgroundTask::BackgroundTask(StartTimes& times, std::string name, std::function<void()> body)
    : times_(times), name_(std::move(name)), seconds_(std::async(std::launch::async, [body = std::move(body)] {
        const auto begin = StartTimes::Clock::now();
        body();
        return seconds_since(begin);
      })) {}

void BackgroundTask::wait() { times_.beside(name_, seconds_.get()); }

}  // namespace blipft
