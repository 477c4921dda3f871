// StartTimes: how long each part of the start takes, from the start of the process to the first step.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

namespace blipft {

/// The parts of a start follow each other on the main thread. Work of other threads at the same time is reported
/// separately.
class StartTimes {
 public:
  using Clock = std::chrono::steady_clock;
  using Part = std::pair<std::string, double>;  ///< name (one word), seconds

  /// Records the first part, `launch`: the time before this object is constructed (loading the program, MPI).
  StartTimes();
  /// Ends a part and records its duration.
  void part(const std::string& name);
  /// Records the duration of work that another thread did at the same time.
  void beside(const std::string& name, double seconds) { beside_.push_back({name, seconds}); }
  /// Returns the seconds since the process started.
  double seconds() const;

  const std::vector<Part>& parts() const { return parts_; }
  const std::vector<Part>& background_parts() const { return beside_; }
  /// Returns "launch 0.31 s, data 0.02 s, ... (beside them: plan 0.40 s), ready after 3.4 s".
  std::string text() const;

 private:
  Clock::time_point begin_, last_;
  std::vector<Part> parts_, beside_;
};

/// A part of the start that runs on its own thread. The destructor waits for it.
class BackgroundTask {
 public:
  BackgroundTask(StartTimes& times, std::string name, std::function<void()> body);
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;
  /// Waits until the part is done, rethrows its exception, and records its duration. Call this once.
  void wait();

 private:
  StartTimes& times_;
  std::string name_;
  std::future<double> seconds_;
};

inline double seconds_since(StartTimes::Clock::time_point start) {
  return std::chrono::duration<double>(StartTimes::Clock::now() - start).count();
}

}  // namespace blipft
