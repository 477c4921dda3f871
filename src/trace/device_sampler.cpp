// The sampling thread; see device_sampler.h.
#include "trace/device_sampler.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <utility>

namespace blipft {

namespace {

class HostMonitor final : public DeviceMonitor {
 public:
  void sample(DeviceRecord&) const override {}
  int64_t process_bytes() override { return -1; }
  std::string process_bytes_source() const override { return ""; }
};

}  // namespace

std::unique_ptr<DeviceMonitor> make_host_monitor() { return std::make_unique<HostMonitor>(); }

// Returns the resident set: the second number of /proc/self/statm, in pages.
int64_t host_rss_bytes() {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/statm", "r"), std::fclose);
  long long size = 0, resident = 0;
  if (!file || std::fscanf(file.get(), "%lld %lld", &size, &resident) != 2) return 0;
  return static_cast<int64_t>(resident) * sysconf(_SC_PAGESIZE);
}

DeviceSampler::DeviceSampler(const DeviceMonitor& monitor, double seconds,
                             std::function<void(const DeviceRecord&)> take)
    : monitor_(monitor), take_(std::move(take)), thread_([this, seconds] { run(seconds); }) {}

DeviceSampler::~DeviceSampler() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void DeviceSampler::sample() {
  constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
  DeviceRecord record{.time_ns = 0, .utilization = unknown, .power_watts = unknown, .sm_mhz = unknown,
                      .memory_mhz = unknown, .temperature_c = unknown, .memory_bytes = 0,
                      .host_rss_bytes = host_rss_bytes(), .gpu_joules = unknown, .cpu_joules = unknown};
  const std::lock_guard lock(sampling_);
  monitor_.sample(record);
  take_(record);
}

void DeviceSampler::run(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto period = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  Clock::time_point next = Clock::now();
  try {
    for (;;) {
      sample();
      // A late sample delays all later ones; skipped samples are not made up for.
      next = std::max(next + period, Clock::now());
      std::unique_lock lock(mutex_);
      if (wake_.wait_until(lock, next, [this] { return ending_; })) return;
    }
  } catch (...) {
    // A trace that cannot be written reports its error when it is closed.
  }
}

}  // namespace blipft
