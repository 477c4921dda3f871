// The trace's clock: a device's clock that drifts is told in the host's time, all through a run and never backwards.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <random>
#include <thread>
#include <vector>

#include "trace/trace_clock.h"

using namespace blipft;

namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kUnix = 1'700'000'000 * kSecond;

// A device's clock that began somewhere else, and is faster than the host's by a rate that wanders with temperature.
int64_t device_time(double host_seconds, double rate) {
  const double drift = rate * host_seconds + 3e-4 * std::sin(host_seconds / 600);   // in seconds; up to 0.5e-6 more
  return 77 * kSecond + std::llround((host_seconds + drift) * 1e9);
}

int64_t host_time(double host_seconds) { return kUnix + std::llround(host_seconds * 1e9); }

// A pair as ClockReader makes it: the device was read at any moment between the host's two readings, mostly within 10
// us, once in eight times (a busy device) within 400 us. At the start the device is idle.
ClockPair read_pair(double host_seconds, double rate, std::mt19937& random) {
  std::uniform_real_distribution<double> uniform(0, 1);
  const double width = host_seconds > 0 && uniform(random) < 0.125 ? 400e-6 : 5e-6 + 5e-6 * uniform(random);
  const double requested = host_seconds, read = host_seconds + width * uniform(random);
  return {device_time(read, rate), host_time(requested + width / 2), std::llround(width / 2 * 1e9)};
}

struct Errors {
  double worst_ns = 0;                     // of a time, from 3 s after the start
  double worst_duration = 0;               // of a step's duration, relative
  bool rises = true;
};

// Steps of 0.35 s with a pair every `period` s, told 1.1 s after they ended.
Errors follow(double seconds, double rate, double period) {
  std::mt19937 random(5);
  ClockMap map;
  Errors errors;
  double next = 0;
  int64_t before = INT64_MIN;
  for (double begin = 0.01; begin < seconds; begin += 0.35) {
    for (; next < begin + 0.35 + 1.1; next += period) map.add(read_pair(next, rate, random));
    int64_t reported[8];
    for (int i = 0; i < 8; ++i) {          // spans, back to back
      const double moment = begin + 0.05 * i;
      reported[i] = map.at(device_time(moment, rate));
      errors.rises = errors.rises && reported[i] > before;
      before = reported[i];
      if (begin > 3)
        errors.worst_ns = std::max(errors.worst_ns, std::abs(static_cast<double>(reported[i] - host_time(moment))));
    }
    before = reported[7] - 1;                  // the next step begins at the same moment
    errors.worst_duration =
        std::max(errors.worst_duration, std::abs(static_cast<double>(reported[6] - reported[0]) / 0.3e9 - 1));
  }
  return errors;
}

}  // namespace

TEST_SUITE("trace_clock") {

TEST_CASE("an hour of a drifting clock") {
  for (double rate : {6e-6, -20e-6, 0.0}) {
    CAPTURE(rate);
    const Errors errors = follow(3600, rate, 0.2);
    // A pair is off by up to 5 us, and evenly so; a line through 64 of them is better than one.
    CHECK(errors.worst_ns < 5000);
    CHECK(errors.rises);
    // 0.5 us a second of wander, the rate's own uncertainty, and the way back to the line within a second.
    CHECK(errors.worst_duration < 30e-6);
  }
  // Without correction an hour at 6 us a second would be 21.6 ms.
  CHECK(std::abs(device_time(3600, 6e-6) - device_time(0, 6e-6) - 3600.0 * kSecond) > 2e7);
}

TEST_CASE("few pairs will do") {
  const Errors errors = follow(3600, 6e-6, 10);
  CHECK(errors.worst_ns < 100'000);        // up to 10 s at 6.5 us a second before the rate is known
  CHECK(errors.rises);
}

TEST_CASE("one pair shifts, and reported times stay") {
  ClockMap map;
  CHECK(map.empty());
  map.add({1000, kUnix, 500});
  CHECK(map.at(1000) == kUnix);
  CHECK(map.at(5000) == kUnix + 4000);
  CHECK(map.at(0) == kUnix - 1000);
  const int64_t reported = map.at(10 * kSecond);
  for (int i = 1; i < 100; ++i)
    map.add({10 * kSecond + i * kSecond / 10, kUnix + 10 * kSecond + 50'000 + i * kSecond / 10, 500});
  CHECK(map.at(10 * kSecond) == reported);     // though the pairs say now that it was 50 us later
  CHECK(map.at(5 * kSecond) == kUnix + 5 * kSecond - 1000);
  // Pairs say 50 us later at 20 s. The first pair said 0 there at 0 s: the line is between.
  CHECK(std::abs(map.at(20 * kSecond) - (kUnix + 20 * kSecond + 50'000)) < 20'000);
}

TEST_CASE("a system clock that is set does not turn times back, and is followed") {
  for (int64_t jump : {int64_t{5'000'000}, int64_t{-5'000'000}}) {
    CAPTURE(jump);
    std::mt19937 random(7);
    ClockMap map;
    int64_t before = 0;
    double worst_early = 0, worst_late = 0;
    for (int i = 0; i < 600; ++i) {        // 120 s; the clock is set after 60
      const double moment = 0.2 * i;
      const int64_t shift = moment >= 60 ? jump : 0;
      ClockPair pair = read_pair(moment, 6e-6, random);
      pair.host_ns += shift;
      map.add(pair);
      const int64_t reported = map.at(device_time(moment + 0.1, 6e-6));
      CHECK(reported > before);
      before = reported;
      const double error = std::abs(static_cast<double>(reported - host_time(moment + 0.1) - shift));
      if (moment > 3 && moment < 59) worst_early = std::max(worst_early, error);
      if (moment > 75) worst_late = std::max(worst_late, error);   // 5 ms at 1 ms a second, and the last second
    }
    CHECK(worst_early < 10'000);
    CHECK(worst_late < 10'000);
  }
}

TEST_CASE("the reader is as close as its tries, also where the device is busy") {
  int64_t slot = 0;
  int requested = 0;
  constexpr int64_t apart = 123 * kSecond;
  std::chrono::microseconds busy{0};
  ClockReader reader(&slot, [&] {
    ++requested;
    if (busy.count() > 0) std::this_thread::sleep_for(busy);
    slot = unix_ns() - apart;
  });
  const auto error = [&](const ClockPair& pair) { return std::abs(pair.host_ns - pair.device_ns - apart); };
  const auto idle = reader.read(kSecond);
  REQUIRE(idle);
  CHECK(requested == 8);
  CHECK(idle->error_ns < 100'000);         // eight tries are not all disturbed so long
  CHECK(error(*idle) <= idle->error_ns + 1);
  busy = std::chrono::microseconds(3000);
  const auto late = reader.read(kSecond);
  REQUIRE(late);
  CHECK(late->error_ns > 1'000'000);       // it may be so much
  CHECK(error(*late) < 200'000);           // but is not: the answer came at once
  CHECK(!reader.waiting());
}

TEST_CASE("the reader gives up on a device that does not answer, and throws the late answer away") {
  int64_t slot = 0;
  int requested = 0;
  ClockReader reader(&slot, [&] { ++requested; });
  CHECK(!reader.read(100'000));
  CHECK(requested == 1);
  CHECK(reader.waiting());
  CHECK(!reader.read(100'000));            // asking again would mix the two answers up
  CHECK(requested == 1);
  slot = 5;                                // late
  CHECK(!reader.waiting());
  CHECK(!reader.read(100'000));
  CHECK(requested == 2);
}

TEST_CASE("the clock of the CPU device") {
  const auto device = make_cpu_device(1);
  DeviceClock clock(*device);
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) clock.measure();
  });
  int64_t reading = 0, last = 0;
  double best = 1e18;
  for (int i = 0; i < 1000; ++i) {
    const int64_t before = unix_ns();
    device->timestamp(&reading, device->compute_stream());
    const int64_t after = unix_ns(), reported = clock.at(reading);
    CHECK(reported >= last);
    last = reported;
    best = std::min(best, std::abs(static_cast<double>(reported - (before + after) / 2)));
  }
  other.join();
  CHECK(best < 100'000);                   // the machine may be busy, but not at all 1000 readings
}

TEST_CASE("the clock of a GPU, for two seconds") {
  if (cuda_device_count() == 0) {
    std::cout << "SKIPPED: the clock of a GPU (no GPU)" << std::endl;
    return;
  }
  const auto device = make_cuda_device(0);
  auto* slot = static_cast<int64_t*>(device->allocate_host(sizeof(int64_t)));
  DeviceClock clock(*device);
  int64_t last = 0;
  std::vector<int64_t> off;                // how far outside of the time in which it was read
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    clock.measure();
    const int64_t before = unix_ns();
    device->timestamp(slot, device->compute_stream());
    device->synchronize(device->compute_stream());
    const int64_t after = unix_ns(), reported = clock.at(*slot);
    CHECK(reported > last);
    last = reported;
    off.push_back(std::max(before - reported, reported - after));
  }
  // Half of a reading's width, some 5 us, and what the rate is uncertain by within 100 ms; a busy machine widens some.
  std::sort(off.begin(), off.end());
  CHECK(off[14] < 20'000);
  CHECK(off.back() < 1'000'000);
  device->free_host(slot);
}

}
