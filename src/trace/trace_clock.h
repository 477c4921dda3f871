// The trace's clock: converts readings of the device clock to host times during a whole run.
//
// The two clocks drift apart by some millionths. Pairs of readings are taken periodically, and a line through the
// latest pairs gives the difference between the clocks. Returned times approach this line smoothly, so that they never
// go backwards.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include "blipft/device.h"

namespace blipft {

/// Readings of two clocks at the same moment.
struct ClockPair {
  int64_t device_ns = 0, host_ns = 0;
  int64_t error_ns = 0;                    ///< maximum error of host_ns
};

/// Maps device times to host times by a continuous chain of rising line segments.
class ClockMap {
 public:
  /// Pairs must be added in the order of time. The first pair defines the start of the map. A later pair changes no
  /// result before the latest time that was passed to at().
  void add(const ClockPair& pair);
  bool empty() const { return knots_.empty(); }
  /// Returns the host time of a device clock reading. Call add() first.
  int64_t at(int64_t device_ns);

 private:
  struct Point {                           // all members in ns since the first pair
    double time, offset, weight;           // offset: host clock minus device clock
  };
  struct Knot {
    double time, offset, rate;             // the offset at `time`, and its slope from this time on
  };
  void fit();
  double line(double time) const { return offset_ + rate_ * (time - time_); }
  double reported(double time) const;

  int64_t first_device_ns_ = 0, first_offset_ns_ = 0;
  std::deque<Point> points_;
  double time_ = 0, offset_ = 0, rate_ = 0;  // the line through the points
  std::deque<Knot> knots_;
  double latest_ = 0;                      // latest time passed to at()
};

/// Reads the device clock between two readings of the host clock.
class ClockReader {
 public:
  /// `start_reading` makes the device store its clock into *slot (host memory; the value is never 0) soon, and does not wait for
  /// it.
  ClockReader(int64_t* slot, std::function<void()> start_reading) : slot_(slot), start_reading_(std::move(start_reading)) {}
  /// Returns the best pair of several tries, or none without an answer within `patience_ns`. A late answer is ignored.
  std::optional<ClockPair> read(int64_t patience_ns);
  /// Returns true if the device may still write into the slot.
  bool waiting() const;

 private:
  int64_t answer() const;
  int64_t* slot_;
  std::function<void()> start_reading_;
  bool requested_ = false;
  int64_t way_back_ns_ = INT64_MAX;        // time from a reading until the host sees it: the smallest error so far
};

/// The clock of a device. measure() and at() may be called by different threads.
class DeviceClock {
 public:
  /// Takes the first measurement; waits for the device.
  explicit DeviceClock(Device& device);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  /// Reads both clocks. This costs the calling thread about 100 us and the device almost nothing, because only the
  /// clock's own stream waits. Must not be called by two threads at once.
  void measure();
  /// Returns the host time, as of unix_ns(), of the reading `device_ns`.
  int64_t at(int64_t device_ns);

 private:
  Device& device_;
  int64_t* slot_;
  ClockReader reader_;
  std::mutex mutex_;                       // guards map_
  ClockMap map_;
};

}  // namespace blipft
