// Activity: the current activity of a rank, set by its training thread and read by its watchdog.
//
// A change consists of two stores by one thread; readers take no lock and see a consistent state.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "blipft/rank_operation.h"

namespace blipft {

class Activity {
 public:
  enum class Phase : uint8_t { start, training, validation, saving, end, generation, scoring, results };
  /// Returns true if ranks in `phase` work in steps (or rounds of generation), each of which must end in bounded time.
  static bool has_steps(Phase phase) {
    return phase == Phase::training || phase == Phase::validation || phase == Phase::generation || phase == Phase::scoring;
  }
  using RankOperation = blipft::RankOperation;

  /// Phase, doing, step (-1: none) and unit (-1: none), packed into one word that changes atomically.
  struct State {
    Phase phase = Phase::start;
    RankOperation doing = RankOperation::host;
    int64_t step = -1, unit = -1;
    uint64_t word() const {
      return static_cast<uint64_t>(phase) | static_cast<uint64_t>(doing) << 4 |
             (static_cast<uint64_t>(unit + 1) & 0xffffff) << 12 | static_cast<uint64_t>(step + 1) << 36;
    }
    static State of(uint64_t word) {
      return {static_cast<Phase>(word & 15), static_cast<RankOperation>(word >> 4 & 255), static_cast<int64_t>(word >> 36) - 1,
              static_cast<int64_t>(word >> 12 & 0xffffff) - 1};
    }
  };

  /// Only the training thread may call it.
  void set(const State& state) {
    word_.store(state.word(), std::memory_order_relaxed);
    progress_.store(progress_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  /// Changes the phase; the step stays.
  void phase(Phase phase) { set({phase, RankOperation::host, state().step, -1}); }
  void step(int64_t step) { set({Phase::training, RankOperation::host, step, -1}); }
  void doing(RankOperation doing, int64_t unit = -1) {
    const State now = state();
    set({now.phase, doing, now.step, unit});
  }

  /// Sets an activity until its destructor restores the previous state; the unit stays.
  class Scope {
   public:
    Scope(Activity& activity, RankOperation doing) : activity_(activity), before_(activity.state()) {
      activity_.set({before_.phase, doing, before_.step, before_.unit});
    }
    ~Scope() { activity_.set(before_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Activity& activity_;
    const State before_;
  };

  /// Any thread may call these.
  State state() const { return State::of(word()); }
  uint64_t word() const { return word_.load(std::memory_order_relaxed); }
  uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }  ///< number of changes so far

  /// Sets the names of units for texts. The training thread calls it once.
  void name_units(std::vector<std::string> names) {
    if (owned_) return;
    owned_ = std::make_unique<const std::vector<std::string>>(std::move(names));
    names_.store(owned_.get(), std::memory_order_release);
  }
  /// Returns "step 7: all_reduce of opt.layer.3" or "start-up: barrier". Any rank's state works: units are equal.
  std::string text(const State& state) const;

 private:
  std::atomic<uint64_t> word_{State{}.word()}, progress_{0};
  std::unique_ptr<const std::vector<std::string>> owned_;
  std::atomic<const std::vector<std::string>*> names_{nullptr};
};

}  // namespace blipft
