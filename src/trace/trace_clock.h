// The trace's clock: tells readings of the device's clock as times of the host's, all through a run.
//
// The two clocks run some millionths apart. Pairs of readings are taken now and then; a line through the latest of them
// says where the device's clock is, and what was told before is led to that line smoothly, so that times never go back.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include "blipft/device.h"

namespace blipft {

/// One moment on two clocks.
struct ClockPair {
  int64_t device_ns = 0, host_ns = 0;
  int64_t error_ns = 0;                    ///< how far host_ns may be off
};

/// Times of the device's clock as times of the host's: a chain of lines without gaps, each of which rises.
class ClockMap {
 public:
  /// Pairs come in the order of time. The first decides where the map begins; a later one changes nothing before the
  /// latest time that at() has told.
  void add(const ClockPair& pair);
  bool empty() const { return knots_.empty(); }
  /// The host's time of a reading. After the first add().
  int64_t at(int64_t device_ns);

 private:
  struct Point {                           // all in ns since the first pair
    double time, offset, weight;           // offset: host's clock minus device's
  };
  struct Knot {
    double time, offset, rate;             // the offset at `time`, and its growth from there on
  };
  void fit();
  double line(double time) const { return offset_ + rate_ * (time - time_); }
  double told(double time) const;

  int64_t first_device_ns_ = 0, first_offset_ns_ = 0;
  std::deque<Point> points_;
  double time_ = 0, offset_ = 0, rate_ = 0;  // the line through the points
  std::deque<Knot> knots_;
  double latest_ = 0;                      // that at() was asked for
};

/// Reads a device's clock between two readings of the host's.
class ClockReader {
 public:
  /// `ask` makes the device store its clock into *slot (host memory, never 0), soon, and does not wait for that.
  ClockReader(int64_t* slot, std::function<void()> ask) : slot_(slot), ask_(std::move(ask)) {}
  /// From several tries; none when no answer came within `patience_ns`. A late answer is thrown away.
  std::optional<ClockPair> read(int64_t patience_ns);
  /// Whether the device may still write into the slot.
  bool waiting() const;

 private:
  int64_t answer() const;
  int64_t* slot_;
  std::function<void()> ask_;
  bool asked_ = false;
  int64_t way_back_ns_ = INT64_MAX;        // from the reading to its being seen: the least error so far
};

/// The clock of a device. measure() and at() may be called by different threads.
class DeviceClock {
 public:
  /// Measures a first time; waits for the device.
  explicit DeviceClock(Device& device);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  /// Reads both clocks. Costs the calling thread some 100 us, and the device next to nothing: no stream but the clock's
  /// own waits. Not by two threads at once.
  void measure();
  /// The reading `device_ns` as unix_ns() would have told it.
  int64_t at(int64_t device_ns);

 private:
  Device& device_;
  int64_t* slot_;
  ClockReader reader_;
  std::mutex mutex_;                       // guards map_
  ClockMap map_;
};

}  // namespace blipft
