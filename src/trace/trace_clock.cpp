// Conversion of device times to host times; see trace_clock.h.
#include "trace/trace_clock.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "blipft/error.h"
#include "ops/quietly.h"

namespace blipft {

namespace {
constexpr size_t kPoints = 64;             // number of pairs in the fit of the line: 13 s at 5 pairs a second
constexpr double kUsualRate = 1e-5;        // expected drift between the clocks, used before there are enough pairs
constexpr double kMaxRate = 1e-3;         // maximum slope with which returned times approach the line
constexpr double kLeadNs = 1e9;            // time in which returned times reach the line
constexpr double kMinErrorNs = 1000;     // minimum error of a pair: no clock is read more precisely
constexpr double kJumpNs = 1e6;            // a pair farther from the line means that the system clock was set
constexpr size_t kKnots = 64;
constexpr int kTries = 8;
constexpr int64_t kPatienceNs = 1'000'000, kFirstPatienceNs = 10'000'000'000;
}  // namespace

void ClockMap::add(const ClockPair& pair) {
  if (knots_.empty()) {
    first_device_ns_ = pair.device_ns;
    first_offset_ns_ = pair.host_ns - pair.device_ns;
  }
  const double time = static_cast<double>(pair.device_ns - first_device_ns_);
  const double offset = static_cast<double>(pair.host_ns - pair.device_ns - first_offset_ns_);
  const double error = std::max(kMinErrorNs, static_cast<double>(pair.error_ns));
  if (!points_.empty() && std::abs(offset - line(time)) > kJumpNs + error) points_.clear();
  points_.push_back({time, offset, 1 / (error * error)});
  if (points_.size() > kPoints) points_.pop_front();
  fit();
  // Continue from the latest returned time towards the line, which is reached after kLeadNs, then along the line.
  const double here = knots_.empty() ? line(latest_) : reported(latest_);
  const double slope = std::clamp((line(latest_ + kLeadNs) - here) / kLeadNs, -kMaxRate, kMaxRate);
  while (!knots_.empty() && knots_.back().time >= latest_) knots_.pop_back();
  knots_.push_back({latest_, here, slope});
  knots_.push_back({latest_ + kLeadNs, here + slope * kLeadNs, rate_});
  while (knots_.size() > kKnots) knots_.pop_front();
}

// Fits the line by weighted least squares. The expected drift counts like one more observation (of rate 0 with error
// kUsualRate), because the first pairs are too close in time to determine the rate.
void ClockMap::fit() {
  double weight = 0, time = 0, offset = 0;
  for (const Point& p : points_) weight += p.weight, time += p.weight * p.time, offset += p.weight * p.offset;
  time_ = time / weight;
  offset_ = offset / weight;
  double xx = 1 / (kUsualRate * kUsualRate), xy = 0;
  for (const Point& p : points_) {
    xx += p.weight * (p.time - time_) * (p.time - time_);
    xy += p.weight * (p.time - time_) * (p.offset - offset_);
  }
  rate_ = std::clamp(xy / xx, -kMaxRate, kMaxRate);
}

double ClockMap::reported(double time) const {
  const auto after = std::find_if(knots_.rbegin(), knots_.rend(), [&](const Knot& knot) { return knot.time <= time; });
  const Knot& knot = after == knots_.rend() ? knots_.front() : *after;
  return knot.offset + knot.rate * (time - knot.time);
}

int64_t ClockMap::at(int64_t device_ns) {
  BLIPFT_CHECK(!empty(), "a time was requested before the clocks were read");
  const double time = static_cast<double>(device_ns - first_device_ns_);
  latest_ = std::max(latest_, time);
  return device_ns + first_offset_ns_ + std::llround(reported(time));
}

int64_t ClockReader::answer() const { return std::atomic_ref<int64_t>(*slot_).load(std::memory_order_acquire); }

bool ClockReader::waiting() const { return requested_ && answer() == 0; }

// Each try gives a lower and an upper bound of the difference between the clocks; all tries together narrow the range.
// A busy device reads its clock late, but returns the reading without delay. Therefore the difference is the upper
// bound minus the time of the way back, rather than the middle of the range.
std::optional<ClockPair> ClockReader::read(int64_t patience_ns) {
  std::optional<int64_t> device_ns;        // reading of the try with the smallest upper bound
  int64_t upper = INT64_MAX, lower = INT64_MIN;
  for (int i = 0; i < kTries && !waiting(); ++i) {
    std::atomic_ref<int64_t>(*slot_).store(0, std::memory_order_release);
    requested_ = true;
    const int64_t before = unix_ns();
    start_reading_();
    int64_t device = 0, after = before;
    do {
      device = answer();
      after = unix_ns();
    } while (device == 0 && after - before < patience_ns);
    if (device == 0) break;
    if (after - device < upper) upper = after - device, device_ns = device;
    lower = std::max(lower, before - device);
  }
  if (!device_ns || upper < lower) return std::nullopt;  // upper < lower: the system clock was set in the meantime
  const int64_t error = (upper - lower) / 2;
  way_back_ns_ = std::min(way_back_ns_, error);
  return ClockPair{*device_ns, *device_ns + upper - way_back_ns_, error};
}

DeviceClock::DeviceClock(Device& device)
    : device_(device), slot_(static_cast<int64_t*>(device.allocate_host(sizeof(int64_t)))),
      reader_(slot_, [this] { device_.timestamp(slot_, device_.clock_stream()); }) {
  device_.timestamp(slot_, device_.clock_stream());  // the first kernel is slow
  device_.synchronize(device_.clock_stream());
  const std::optional<ClockPair> pair = reader_.read(kFirstPatienceNs);
  BLIPFT_CHECK(pair, "the clock of ", device_.name(), " gives no answer");
  map_.add(*pair);
}

DeviceClock::~DeviceClock() {
  if (reader_.waiting()) return;           // the device frees the slot when it is destroyed
  quietly([&] { device_.free_host(slot_); });
}

void DeviceClock::measure() {
  device_.bind_thread();
  const std::optional<ClockPair> pair = reader_.read(kPatienceNs);
  if (!pair) return;
  const std::lock_guard lock(mutex_);
  map_.add(*pair);
}

int64_t DeviceClock::at(int64_t device_ns) {
  const std::lock_guard lock(mutex_);
  return map_.at(device_ns);
}

}  // namespace blipft
