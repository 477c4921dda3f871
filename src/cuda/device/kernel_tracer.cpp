// Records kernels, copies and memsets with CUPTI's activity API.
//
// CUPTI is loaded only if a run traces kernels, so that the program starts without it. CUPTI passes full buffers of
// records to callbacks in a thread of its own and supports no user data, so the records are collected in one object per
// process.
#include "blipft/device.h"
#include "blipft/monitor.h"

#include "blipft/error.h"

#if __has_include(<cupti.h>)

#include <cuda_runtime_api.h>
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <vector>

namespace blipft {

namespace {

#if CUPTI_API_VERSION >= 130000
using KernelActivity = CUpti_ActivityKernel10;
using CopyActivity = CUpti_ActivityMemcpy6;
#else
using KernelActivity = CUpti_ActivityKernel9;
using CopyActivity = CUpti_ActivityMemcpy5;
#endif
using PeerCopyActivity = CUpti_ActivityMemcpyPtoP4;
using FillActivity = CUpti_ActivityMemset4;

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr size_t kBufferAlignment = 64;    // CUPTI requires 8
// A step has about ten thousand records of about 200 bytes.
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET};

struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped = nullptr;
  decltype(&cuptiGetTimestamp) timestamp = nullptr;
  decltype(&cuptiGetResultString) text = nullptr;
};

/// State of CUPTI's callbacks. CUPTI is never unloaded because it installs hooks in the driver.
struct Sink {
  Cupti cupti;
  std::mutex mutex;
  std::vector<KernelRecord> records;       // times on CUPTI's clock
  std::map<std::string, std::string> names;  // mangled -> demangled
  size_t lost = 0;
};

Sink& sink() {
  static Sink* const one = new Sink;       // never destroyed: callbacks may come while the program exits
  return *one;
}

std::string result_text(CUptiResult result) {
  const char* text = nullptr;
  if (sink().cupti.text) sink().cupti.text(result, &text);
  return text ? text : concat("CUPTI error ", static_cast<int>(result));
}

void check_cupti(CUptiResult result, const char* call) {
  if (result != CUPTI_SUCCESS) throw Error(concat(call, ": ", result_text(result)));
}

const char* copy_name(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: return "copy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: return "copy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: return "copy device to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOH: return "copy host to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP: return "copy between devices";
    default: return "copy";
  }
}

/// The caller holds the sink's lock.
const std::string& demangled(const char* name) {
  const auto [entry, is_new] = sink().names.try_emplace(name ? name : "(no name)");
  if (is_new) {
    int status = 0;
    char* const raw = abi::__cxa_demangle(entry->first.c_str(), nullptr, nullptr, &status);
    const std::unique_ptr<char, void (*)(void*)> text(raw, std::free);
    entry->second = status == 0 && text ? text.get() : entry->first;
  }
  return entry->second;
}

template <class Activity>
KernelRecord record_of(const Activity& activity, KernelRecord::Kind kind, std::string name) {
  KernelRecord record;
  record.begin_ns = static_cast<int64_t>(activity.start);
  record.end_ns = static_cast<int64_t>(activity.end);
  record.graph_node = static_cast<int64_t>(activity.graphNodeId);
  record.kind = kind;
  record.stream = static_cast<int32_t>(activity.streamId);
  record.device = static_cast<int32_t>(activity.deviceId);
  record.name = std::move(name);
  return record;
}

template <class Activity>
KernelRecord moved(const Activity& activity, KernelRecord::Kind kind, const char* name) {
  KernelRecord record = record_of(activity, kind, name);
  record.bytes = static_cast<int64_t>(activity.bytes);
  return record;
}

/// Stores a record. The caller holds the sink's lock.
void take(const CUpti_Activity* activity) {
  std::vector<KernelRecord>& records = sink().records;
  switch (activity->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
    case CUPTI_ACTIVITY_KIND_KERNEL: {
      const auto& kernel = *reinterpret_cast<const KernelActivity*>(activity);
      records.push_back(record_of(kernel, KernelRecord::kernel, demangled(kernel.name)));
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = *reinterpret_cast<const CopyActivity*>(activity);
      records.push_back(moved(copy, KernelRecord::copy, copy_name(copy.copyKind)));
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
      const auto& copy = *reinterpret_cast<const PeerCopyActivity*>(activity);
      records.push_back(moved(copy, KernelRecord::copy, copy_name(CUPTI_ACTIVITY_MEMCPY_KIND_PTOP)));
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET:
      records.push_back(moved(*reinterpret_cast<const FillActivity*>(activity), KernelRecord::fill, "fill"));
      break;
    default: break;
  }
}

void CUPTIAPI buffer_wanted(uint8_t** buffer, size_t* bytes, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *bytes = *buffer ? kBufferBytes : 0;
  *max_records = 0;                       // no limit besides the buffer's size
}

void CUPTIAPI buffer_full(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid_bytes) {
  const std::unique_ptr<uint8_t, void (*)(void*)> owner(buffer, std::free);
  Sink& s = sink();
  const std::lock_guard lock(s.mutex);
  try {                                    // no exception may pass through CUPTI
    CUpti_Activity* activity = nullptr;
    while (valid_bytes > 0 && s.cupti.next(buffer, valid_bytes, &activity) == CUPTI_SUCCESS) take(activity);
    size_t dropped = 0;
    if (s.cupti.dropped(context, stream, &dropped) == CUPTI_SUCCESS) s.lost += dropped;
  } catch (...) {                          // out of memory: the rest of the buffer is lost
    ++s.lost;
  }
}

/// Loads the library next to the loaded CUDA runtime, or the one that the dynamic loader finds.
void* load_library(std::string& tried) {
  const std::string name = concat("libcupti.so.", CUDART_VERSION / 1000);
  std::vector<std::string> candidates{name};
  Dl_info runtime{};
  if (dladdr(reinterpret_cast<void*>(&cudaGetDeviceCount), &runtime) && runtime.dli_fname) {
    const std::string path = runtime.dli_fname, folder = path.substr(0, path.rfind('/') + 1);
    // The toolkit has it in lib64 or extras/CUPTI; Python packages have separate folders.
    for (const char* candidate : {"", "../extras/CUPTI/lib64/", "../../../extras/CUPTI/lib64/", "../../cuda_cupti/lib/"})
      candidates.push_back(folder + candidate + name);
  }
  candidates.push_back("libcupti.so");
  for (const std::string& candidate : candidates) {
    if (void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    tried += concat(tried.empty() ? "" : ", ", candidate);
  }
  return nullptr;
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  BLIPFT_USER_CHECK(function, "the CUPTI library has no ", name, "; it is too old for this CUDA");
}

void load(Cupti& cupti) {
  if (cupti.text) return;
  std::string tried;
  void* library = load_library(tried);
  BLIPFT_USER_CHECK(library, "CUPTI, which records kernels, was not found (tried ", tried,
                    "); it comes with the CUDA toolkit in extras/CUPTI: add its lib64 folder to LD_LIBRARY_PATH");
  Cupti found;
  find(library, "cuptiActivityRegisterCallbacks", found.register_callbacks);
  find(library, "cuptiActivityEnable", found.enable);
  find(library, "cuptiActivityDisable", found.disable);
  find(library, "cuptiActivityFlushAll", found.flush);
  find(library, "cuptiActivityGetNextRecord", found.next);
  find(library, "cuptiActivityGetNumDroppedRecords", found.dropped);
  find(library, "cuptiGetTimestamp", found.timestamp);
  find(library, "cuptiGetResultString", found.text);
  cupti = found;
}

class CuptiTracer final : public KernelTracer {
 public:
  CuptiTracer() {
    load(sink().cupti);
    const auto attach = [](CUptiResult result) {
      BLIPFT_USER_CHECK(result == CUPTI_SUCCESS, "CUPTI cannot record kernels: ", result_text(result),
                        "; another profiler may be at work, or the driver is absent or older than the CUPTI library");
    };
    attach(sink().cupti.register_callbacks(buffer_wanted, buffer_full));
    // Enabled once so that CUPTI is initialized before graphs are captured.
    for (const CUpti_ActivityKind kind : kKinds) attach(sink().cupti.enable(kind));
    disable();
  }
  ~CuptiTracer() override { disable(); }

  void start() override {
    flush();                               // discards earlier records
    {
      const std::lock_guard lock(sink().mutex);
      sink().records.clear();
      sink().lost = 0;
    }
    for (const CUpti_ActivityKind kind : kKinds) check_cupti(sink().cupti.enable(kind), "cuptiActivityEnable");
  }

  std::vector<KernelRecord> stop() override {
    const int64_t offset = system_minus_cupti_ns();
    flush();
    disable();
    std::vector<KernelRecord> records;
    {
      const std::lock_guard lock(sink().mutex);
      records.swap(sink().records);
      lost_ = static_cast<int64_t>(sink().lost);
    }
    const auto timeless = [](const KernelRecord& r) { return r.begin_ns == 0 || r.end_ns < r.begin_ns; };
    lost_ += static_cast<int64_t>(std::erase_if(records, timeless));
    for (KernelRecord& record : records) record.begin_ns += offset, record.end_ns += offset;
    return records;
  }
  int64_t lost() const override { return lost_; }

 private:
  static void disable() {
    for (const CUpti_ActivityKind kind : kKinds) (void)sink().cupti.disable(kind);
  }
  // Forced: also flushes buffers that are not full. The device is idle, so every record is complete.
  static void flush() { check_cupti(sink().cupti.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll"); }

  // Reads CUPTI's clock between two reads of the system clock; the try with the shortest interval gives the offset.
  static int64_t system_minus_cupti_ns() {
    int64_t best = INT64_MAX, offset = 0;
    for (int i = 0; i < 8; ++i) {
      uint64_t cupti = 0;
      const int64_t before = unix_ns();
      check_cupti(sink().cupti.timestamp(&cupti), "cuptiGetTimestamp");
      const int64_t after = unix_ns();
      if (after - before < best) best = after - before, offset = before + best / 2 - static_cast<int64_t>(cupti);
    }
    return offset;
  }

  int64_t lost_ = 0;
};

}  // namespace

std::unique_ptr<KernelTracer> make_kernel_tracer() { return std::make_unique<CuptiTracer>(); }

}  // namespace blipft

#else  // the toolkit that built this program has no CUPTI

namespace blipft {

std::unique_ptr<KernelTracer> make_kernel_tracer() {
  throw UserError("this blipft was built without CUPTI's header cupti.h, and cannot record kernels; install the CUDA "
                  "toolkit with CUPTI (package cuda-cupti-dev) and build again");
}

}  // namespace blipft

#endif
