// StartTimes: where the seconds from the start of the process to the first step go.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

namespace blipft {

/// The parts of a start follow each other on the main thread; what ran beside them, on other threads, is told apart.
class StartTimes {
 public:
  using Clock = std::chrono::steady_clock;
  using Part = std::pair<std::string, double>;  ///< name (one word), seconds

  /// The first part, `launch`, is what came before this object: loading the program, MPI.
  StartTimes();
  /// The part that ends here.
  void part(const std::string& name);
  /// What another thread spent beside these parts.
  void beside(const std::string& name, double seconds) { beside_.push_back({name, seconds}); }
  /// Since the process began.
  double seconds() const;

  const std::vector<Part>& parts() const { return parts_; }
  const std::vector<Part>& parts_beside() const { return beside_; }
  /// "launch 0.31 s, data 0.02 s, ... (beside them: plan 0.40 s), ready after 3.4 s"
  std::string text() const;

 private:
  Clock::time_point begin_, last_;
  std::vector<Part> parts_, beside_;
};

/// A part of the start that runs beside others, on a thread of its own. The destructor waits for it.
class Beside {
 public:
  Beside(StartTimes& times, std::string name, std::function<void()> body);
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;
  /// Waits until it is done, rethrows what it threw, and notes what it took. Called once.
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
