// Watching the device: the sampler's thread on any machine; NVML, the driver's memory figures and CUPTI where there is
// a GPU.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "blipft/device.h"
#include "blipft/error.h"
#include "blipft/monitor.h"
#include "support/error_message.h"
#include "trace/device_sampler.h"

using namespace blipft;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

/// A device whose every sample draws one watt more.
class CountingMonitor final : public DeviceMonitor {
 public:
  void sample(DeviceRecord& record) const override { record.power_watts = ++count; }
  int64_t process_bytes() override { return -1; }
  std::string process_bytes_source() const override { return ""; }
  mutable std::atomic<int> count{0};
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

bool without_gpu(const char* test) {
  if (cuda_device_count() > 0) return false;
  std::cout << "SKIPPED: " << test << " (no GPU)" << std::endl;
  return true;
}

/// The name of one of blipft's kernels without namespaces and arguments; other names are unchanged.
std::string plain_name(const std::string& name) {
  for (const char* ours : {"store_time", "graph_fill_kernel"})
    if (name.find(ours) != std::string::npos) return ours;
  return name;
}

int64_t system_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

TEST_SUITE("monitor") {

TEST_CASE("the sampler takes samples until it ends, in order, and not one after that") {
  const CountingMonitor monitor;
  std::vector<DeviceRecord> samples;       // of the sampler's thread until it has ended
  std::atomic<int> sample_count{0};
  {
    const DeviceSampler sampler(monitor, 0.005, [&](const DeviceRecord& record) {
      samples.push_back(record);
      ++sample_count;
    });
    const Clock::time_point start = Clock::now();
    while (sample_count < 5 && seconds_since(start) < 30) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const int at_end = sample_count;
  CHECK(at_end >= 5);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(sample_count == at_end);
  for (size_t i = 0; i < samples.size(); ++i) {
    CHECK(samples[i].power_watts == static_cast<double>(i + 1));
    CHECK(std::isnan(samples[i].utilization));   // what the monitor does not tell is unknown, and not 0
    CHECK(samples[i].memory_bytes == 0);
    CHECK(samples[i].host_rss_bytes > 0);
  }
}

TEST_CASE("the sampler ends at once, however long its period") {
  const std::unique_ptr<DeviceMonitor> monitor = make_host_monitor();
  const Clock::time_point start = Clock::now();
  std::atomic<int> sample_count{0};
  {
    const DeviceSampler sampler(*monitor, 3600, [&](const DeviceRecord&) { ++sample_count; });
    while (sample_count == 0 && seconds_since(start) < 30) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(sample_count == 1);                       // the first one comes without waiting
  CHECK(seconds_since(start) < 20);
}

TEST_CASE("a sample that cannot be kept ends the sampling and nothing else") {
  const std::unique_ptr<DeviceMonitor> monitor = make_host_monitor();
  std::atomic<int> sample_count{0};
  {
    const DeviceSampler sampler(*monitor, 0.001, [&](const DeviceRecord&) {
      ++sample_count;
      throw std::runtime_error("full");
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  CHECK(sample_count == 1);
}

TEST_CASE("resident memory of the process grows with what it touches") {
  const int64_t before = host_rss_bytes();
  REQUIRE(before > 0);
  void* const memory = mmap(nullptr, 64 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  std::memset(memory, 1, 64 * kMiB);
  const int64_t grown = host_rss_bytes() - before;
  CHECK(static_cast<const char*>(memory)[32 * kMiB] == 1);
  munmap(memory, 64 * kMiB);
  CHECK(grown > 48 * kMiB);                // the rest may have been resident before
#ifndef __SANITIZE_THREAD__                  // which keeps several bytes of its own for each of the program's
  CHECK(grown < 128 * kMiB);
#endif
}

TEST_CASE("without a GPU nothing is asked, and kernels are refused with a reason") {
  const std::unique_ptr<DeviceMonitor> none = make_device_monitor(-1);
  DeviceRecord record;
  record.power_watts = 7;
  none->sample(record);
  CHECK(record.power_watts == 7);
  CHECK(none->process_bytes() == -1);
  CHECK(none->process_bytes_source().empty());
  if (cuda_device_count() > 0) return;
  const std::string text = testing::message_of([] { make_kernel_tracer(); });
  CHECK((text.find("CUDA") != std::string::npos || text.find("CUPTI") != std::string::npos));
}

TEST_CASE("a GPU is sampled, and its memory counts what is allocated") {
  if (without_gpu("a GPU is sampled")) return;
  const std::unique_ptr<DeviceMonitor> monitor = make_device_monitor(0);
  const std::unique_ptr<Device> device = make_cuda_device(0);
  device->bind_thread();
  const int64_t before = monitor->process_bytes();
  CAPTURE(monitor->process_bytes_source());
  REQUIRE(before > 0);                     // at least the context
  CHECK(before < 4096 * kMiB);
  void* memory = device->allocate(512 * kMiB);
  const int64_t grown = monitor->process_bytes() - before;
  device->free(memory);
  CHECK(grown >= 512 * kMiB);
  CHECK(grown <= 544 * kMiB);              // the driver allocates in pieces of 2 MiB and may take some for itself
  CHECK(!cuda_versions().at("cuda_runtime").empty());
  constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
  DeviceRecord record{0, unknown, unknown, unknown, unknown, unknown, 0, 0};
  monitor->sample(record);
  if (std::isnan(record.power_watts)) {
    std::cout << "SKIPPED: samples of a GPU (NVML does not answer)" << std::endl;
    return;
  }
  CHECK(record.power_watts > 1);
  CHECK(record.power_watts < 3000);
  CHECK(record.sm_mhz > 50);
  CHECK(record.memory_mhz > 50);
  CHECK(record.temperature_c > 0);
  CHECK(record.temperature_c < 120);
  CHECK(record.utilization >= 0);
  CHECK(record.utilization <= 100);
  CHECK(record.memory_bytes > 0);
}

TEST_CASE("kernels, copies and fills are recorded, alone and inside of a graph") {
  if (without_gpu("kernels are recorded")) return;
  const std::unique_ptr<Device> device = make_cuda_device(0);
  device->bind_thread();
  std::unique_ptr<KernelTracer> tracer;
  try {
    tracer = make_kernel_tracer();
  } catch (const UserError& error) {
    std::cout << "SKIPPED: kernels are recorded (" << error.what() << ")" << std::endl;
    return;
  }
  const Stream stream = device->compute_stream();
  char* memory = static_cast<char*>(device->allocate(16 * kMiB));
  const auto work = [&] {
    device->zero(memory, 4 * kMiB, stream);
    device->copy(memory + 8 * kMiB, memory, 4 * kMiB, stream);
    for (int64_t i = 0; i < 3; ++i) device->timestamp(reinterpret_cast<int64_t*>(memory) + i, stream);
  };
  work();                                  // before the start: not recorded
  const std::unique_ptr<Graph> graph = device->capture(stream, work);   // while nothing is recorded, as in a run
  device->synchronize();
  for (const bool captured : {false, true, true}) {
    CAPTURE(captured);
    tracer->start();
    const int64_t before = system_ns();
    if (captured) graph->launch(stream);
    else work();
    device->synchronize();
    const int64_t after = system_ns();
    const std::vector<KernelRecord> records = tracer->stop();
    CHECK(tracer->lost() == 0);
    work();                                // after the stop: not recorded
    device->synchronize();
    std::vector<int64_t> count(3), bytes(3);
    std::map<std::string, int> kernels;
    for (const KernelRecord& record : records) {
      REQUIRE(record.kind >= 0);
      REQUIRE(record.kind < 3);
      count[static_cast<size_t>(record.kind)] += 1;
      bytes[static_cast<size_t>(record.kind)] += record.bytes;
      CHECK(record.device == 0);
      CHECK(record.end_ns >= record.begin_ns);
      // The device's clock is fitted to the host's: some tens of microseconds, here 5 ms, are its error.
      CHECK(record.begin_ns > before - 5'000'000);
      CHECK(record.end_ns < after + 5'000'000);
      CHECK((record.graph_node != 0) == captured);
      if (record.kind == KernelRecord::kernel) kernels[plain_name(record.name)] += 1;
    }
    // A captured step replays its fills as kernels, and readings of the clock with nothing between them as one.
    using Kernels = std::map<std::string, int>;
    CHECK(kernels == (captured ? Kernels{{"graph_fill_kernel", 1}, {"store_time", 1}} : Kernels{{"store_time", 3}}));
    CHECK(count == (captured ? std::vector<int64_t>{2, 1, 0} : std::vector<int64_t>{3, 1, 1}));
    CHECK(bytes == (captured ? std::vector<int64_t>{0, 4 * kMiB, 0} : std::vector<int64_t>{0, 4 * kMiB, 4 * kMiB}));
    if (captured) CHECK(graph->nodes() == count[0] + count[1] + count[2]);
  }
  device->free(memory);
}

}
