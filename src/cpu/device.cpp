// The CPU device: host memory, streams that are only names, and calls that complete before they return.
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>

#include "base/memory_text.h"
#include "blipft/device.h"
#include "blipft/error.h"

namespace blipft {
namespace {

constexpr int64_t kHugePage = 2 << 20, kHugeBlock = 4 * kHugePage;

/// Returns a value of /proc/meminfo in bytes, or -1 if the kernel does not report it.
int64_t meminfo(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (int64_t kib = 0; file >> name >> kib; std::getline(file, unit))
    if (name == key + ":") return kib * 1024;
  return -1;
}

class CpuGraph final : public Graph {
 public:
  explicit CpuGraph(std::function<void()> body) : body_(std::move(body)) {}
  void launch(Stream) override { body_(); }
  int64_t nodes() const override { return 0; }

 private:
  std::function<void()> body_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : threads_(threads > 0 ? threads : omp_get_max_threads()) { bind_thread(); }

  ~CpuDevice() override {
    for (const auto& [memory, bytes] : blocks_) std::free(memory);
    for (const auto& [memory, bytes] : host_blocks_) std::free(memory);
  }

  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string name() const override { return concat("CPU, ", threads_, threads_ == 1 ? " thread" : " threads"); }

  void* allocate(int64_t bytes) override { return take(bytes, blocks_); }
  void free(void* memory) override { give(memory, blocks_); }
  void* allocate_host(int64_t bytes) override { return take(bytes, host_blocks_); }
  void free_host(void* memory) override { give(memory, host_blocks_); }

  MemoryInfo memory() const override {
    const std::lock_guard lock(mutex_);
    MemoryInfo info;
    info.total = std::max<int64_t>(0, meminfo("MemTotal"));
    info.free = std::max<int64_t>(0, meminfo("MemAvailable"));
    for (const auto& [memory, bytes] : blocks_) info.process += bytes;
    return info;
  }

  Stream compute_stream() const override { return {handle(1)}; }
  Stream comm_stream() const override { return {handle(2)}; }
  Stream copy_stream() const override { return {handle(3)}; }

  Event create_event() override {
    const std::lock_guard lock(mutex_);
    return {handle(++events_)};
  }
  void record(Event, Stream) override {}
  void wait(Stream, Event) override {}
  bool reached(Event) override { return true; }
  void synchronize(Event) override {}
  void synchronize(Stream) override {}
  void synchronize() override {}

  void copy(void* destination, const void* source, int64_t bytes, Stream) override {
    if (bytes > 0 && destination != source) std::memmove(destination, source, static_cast<size_t>(bytes));
  }
  void zero(void* memory, int64_t bytes, Stream) override {
    if (bytes > 0) std::memset(memory, 0, static_cast<size_t>(bytes));
  }
  void timestamp(int64_t* slot, Stream) override {
    *slot = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  std::unique_ptr<Graph> capture(Stream, const std::function<void()>& body) override {
    return std::make_unique<CpuGraph>(body);
  }

  /// Sets the number of threads: OpenMP stores it per calling thread.
  void bind_thread() const override { omp_set_num_threads(threads_); }

 private:
  using Blocks = std::map<void*, int64_t>;

  static void* handle(int64_t number) { return reinterpret_cast<void*>(static_cast<intptr_t>(number)); }

  void* take(int64_t bytes, Blocks& blocks) {
    BLIPFT_CHECK(bytes >= 0, "requested ", bytes, " bytes of memory");
    const int64_t available = meminfo("MemAvailable");
    // Linux overcommits memory and kills the process when it touches the pages, so check the available memory first.
    const bool fits = available < 0 || bytes <= available;
    // Large blocks use huge pages: page faults of small pages take longer than training of the smallest models.
    const size_t alignment = bytes >= kHugeBlock ? size_t{kHugePage} : 256;
    const size_t rounded = (static_cast<size_t>(bytes) + alignment - 1) / alignment * alignment;
    void* memory = fits ? std::aligned_alloc(alignment, std::max<size_t>(rounded, 256)) : nullptr;
    if (memory && bytes >= kHugeBlock) (void)madvise(memory, rounded, MADV_HUGEPAGE);
    if (memory == nullptr)
      throw Error(concat("out of memory on the CPU: requested ", bytes, " bytes (", memory_text(bytes), "), but only ",
                         available, " bytes (", memory_text(available), ") are available"));
    const std::lock_guard lock(mutex_);
    blocks[memory] = bytes;
    return memory;
  }

  void give(void* memory, Blocks& blocks) {
    if (memory == nullptr) return;
    const std::lock_guard lock(mutex_);
    BLIPFT_CHECK(blocks.erase(memory) == 1, "freed memory that this device did not allocate, or freed it twice");
    std::free(memory);
  }

  int threads_;
  mutable std::mutex mutex_;
  Blocks blocks_, host_blocks_;
  int64_t events_ = 0;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(int threads) { return std::make_unique<CpuDevice>(threads); }

}  // namespace blipft
