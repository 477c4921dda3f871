// The CUDA device: memory, streams, events, copies and graph capture.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/memory_text.h"
#include "blipft/device.h"
#include "cuda/device/cuda_check.h"
#include "cuda/device/graph_rewrite.h"
#include "cuda/device/loaded_code.h"

namespace blipft {
namespace {

/// Move-only owner of one CUDA handle.
template <class Handle, cudaError_t (*destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Handle handle) : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_) (void)destroy(handle_);
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};

using OwnedStream = Owned<cudaStream_t, cudaStreamDestroy>;
using OwnedEvent = Owned<cudaEvent_t, cudaEventDestroy>;
using OwnedGraph = Owned<cudaGraph_t, cudaGraphDestroy>;
using OwnedGraphExec = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }
cudaEvent_t native(Event event) { return static_cast<cudaEvent_t>(event.handle); }

OwnedStream make_stream(int priority) {
  cudaStream_t stream = nullptr;
  BLIPFT_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority));
  return OwnedStream(stream);
}

class CudaGraph : public Graph {
 public:
  explicit CudaGraph(OwnedGraph graph, Stream upload) : graph_(std::move(graph)) {
    rewrite_graph(graph_.get());
    size_t nodes = 0;
    BLIPFT_CUDA_CHECK(cudaGraphGetNodes(graph_.get(), nullptr, &nodes));
    nodes_ = static_cast<int64_t>(nodes);
    cudaGraphExec_t executable = nullptr;
    BLIPFT_CUDA_CHECK(cudaGraphInstantiate(&executable, graph_.get(), 0));
    executable_ = OwnedGraphExec(executable);
    BLIPFT_CUDA_CHECK(cudaGraphUpload(executable_.get(), native(upload)));
  }
  void launch(Stream stream) override { BLIPFT_CUDA_CHECK(cudaGraphLaunch(executable_.get(), native(stream))); }
  int64_t nodes() const override { return nodes_; }

 private:
  OwnedGraph graph_;
  OwnedGraphExec executable_;
  int64_t nodes_ = 0;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
    bind_thread();
    cudaDeviceProp properties{};
    BLIPFT_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
    name_ = properties.name;
    code_ = loaded_code().text();
    int minimum = 0, greatest = 0;  // a smaller number is a higher priority
    BLIPFT_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&minimum, &greatest));
    compute_ = make_stream(std::max(greatest, minimum - 1));
    side_ = make_stream(minimum);
    update_ = make_stream(minimum);
    comm_ = make_stream(greatest);
    gather_ = make_stream(greatest);
    clock_ = make_stream(greatest);
    stamp_ = make_stream(greatest);
    copy_ = make_stream(minimum);
    offload_ = make_stream(greatest);
  }

  ~CudaDevice() override {
    (void)cudaSetDevice(index_);
    (void)cudaDeviceSynchronize();
    for (const auto& [memory, bytes] : allocations_) (void)cudaFree(memory);
    for (void* memory : host_allocations_) (void)cudaFreeHost(memory);
  }

  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return name_; }
  std::string code() const override { return code_; }

  void* allocate(int64_t bytes) override {
    BLIPFT_CHECK(bytes >= 0, "cannot allocate ", bytes, " bytes");
    if (bytes == 0) return nullptr;
    bind_thread();
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, static_cast<size_t>(bytes));
    if (status != cudaSuccess) {
      (void)cudaGetLastError();
      size_t free_bytes = 0, total = 0;
      (void)cudaMemGetInfo(&free_bytes, &total);
      throw Error(concat("cannot allocate ", bytes, " bytes (", memory_text(bytes), ") on ", name_, " number ", index_,
                         ": ", memory_text(static_cast<int64_t>(free_bytes)), " of ",
                         memory_text(static_cast<int64_t>(total)), " are free, this process holds ",
                         memory_text(allocated_), ": ", cudaGetErrorName(status), " (", cudaGetErrorString(status),
                         ")"));
    }
    const std::lock_guard lock(mutex_);
    allocations_[memory] = bytes;
    allocated_ += bytes;
    return memory;
  }

  void free(void* memory) override {
    if (memory == nullptr) return;
    {
      const std::lock_guard lock(mutex_);
      const auto found = allocations_.find(memory);
      BLIPFT_CHECK(found != allocations_.end(), "address ", memory, " was not allocated on ", name_);
      allocated_ -= found->second;
      allocations_.erase(found);
    }
    BLIPFT_CUDA_CHECK(cudaFree(memory));
  }

  void* allocate_host(int64_t bytes) override {
    BLIPFT_CHECK(bytes >= 0, "cannot allocate ", bytes, " bytes");
    if (bytes == 0) return nullptr;
    void* memory = nullptr;
    const cudaError_t status = cudaHostAlloc(&memory, static_cast<size_t>(bytes),
                                             cudaHostAllocPortable | cudaHostAllocMapped);
    if (status != cudaSuccess) {
      (void)cudaGetLastError();
      throw Error(concat("cannot allocate ", bytes, " bytes (", memory_text(bytes), ") of page-locked host memory: ",
                         cudaGetErrorName(status), " (", cudaGetErrorString(status), ")"));
    }
    const std::lock_guard lock(mutex_);
    host_allocations_.push_back(memory);
    return memory;
  }

  void free_host(void* memory) override {
    if (memory == nullptr) return;
    {
      const std::lock_guard lock(mutex_);
      BLIPFT_CHECK(std::erase(host_allocations_, memory) == 1, "address ", memory,
          " was not allocated with allocate_host");
    }
    BLIPFT_CUDA_CHECK(cudaFreeHost(memory));
  }

  MemoryInfo memory() const override {
    bind_thread();
    size_t free_bytes = 0, total = 0;
    BLIPFT_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    const std::lock_guard lock(mutex_);
    return {static_cast<int64_t>(total), static_cast<int64_t>(free_bytes), allocated_};
  }

  Stream compute_stream() const override { return {compute_.get()}; }
  Stream comm_stream() const override { return {comm_.get()}; }
  Stream side_stream() const override { return {side_.get()}; }
  Stream update_stream() const override { return {update_.get()}; }
  Stream gather_stream() const override { return {gather_.get()}; }
  Stream clock_stream() const override { return {clock_.get()}; }
  Stream stamp_stream() const override { return {stamp_.get()}; }
  Stream copy_stream() const override { return {copy_.get()}; }
  Stream offload_stream() const override { return {offload_.get()}; }

  Event create_event() override {
    cudaEvent_t event = nullptr;
    BLIPFT_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    const std::lock_guard lock(mutex_);
    events_.emplace_back(event);
    return {event};
  }
  void record(Event event, Stream stream) override {
    BLIPFT_CUDA_CHECK(cudaEventRecord(native(event), native(stream)));
  }
  void wait(Stream stream, Event event) override {
    BLIPFT_CUDA_CHECK(cudaStreamWaitEvent(native(stream), native(event), 0));
  }
  bool reached(Event event) override {
    const cudaError_t status = cudaEventQuery(native(event));
    if (status == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    BLIPFT_CUDA_CHECK(status);
    return true;
  }
  void synchronize(Event event) override { BLIPFT_CUDA_CHECK(cudaEventSynchronize(native(event))); }
  void synchronize(Stream stream) override { BLIPFT_CUDA_CHECK(cudaStreamSynchronize(native(stream))); }
  void synchronize() override {
    bind_thread();
    BLIPFT_CUDA_CHECK(cudaDeviceSynchronize());
  }

  void copy(void* destination, const void* source, int64_t bytes, Stream stream) override {
    if (bytes == 0) return;
    BLIPFT_CUDA_CHECK(
        cudaMemcpyAsync(destination, source, static_cast<size_t>(bytes), cudaMemcpyDefault, native(stream)));
  }
  void zero(void* memory, int64_t bytes, Stream stream) override {
    if (bytes == 0) return;
    BLIPFT_CUDA_CHECK(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), native(stream)));
  }
  void timestamp(int64_t* slot, Stream stream) override {
    launch_timestamp(slot, native(stream));
  }

  std::unique_ptr<Graph> capture(Stream stream, const std::function<void()>& body) override {
    // Relaxed mode: libraries in `body` (NCCL, lazy kernel loading) may make calls that stricter modes forbid.
    BLIPFT_CUDA_CHECK(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeRelaxed));
    cudaGraph_t graph = nullptr;
    try {
      body();
    } catch (...) {
      // Ends the capture so that the stream can be used again, and discards the captured graph.
      (void)cudaStreamEndCapture(native(stream), &graph);
      (void)cudaGetLastError();
      const OwnedGraph unused(graph);
      throw;
    }
    BLIPFT_CUDA_CHECK(cudaStreamEndCapture(native(stream), &graph));
    return std::make_unique<CudaGraph>(OwnedGraph(graph), stream);
  }

  void bind_thread() const override { BLIPFT_CUDA_CHECK(cudaSetDevice(index_)); }

 private:
  int index_ = 0;
  std::string name_, code_;
  OwnedStream compute_, side_, update_, comm_, gather_, clock_, stamp_, copy_, offload_;
  std::vector<OwnedEvent> events_;
  std::map<void*, int64_t> allocations_;
  std::vector<void*> host_allocations_;
  int64_t allocated_ = 0;
  mutable std::mutex mutex_;  // the data loader's threads allocate too
};

}  // namespace

int cuda_device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess) return count;
  (void)cudaGetLastError();
  // A missing driver or GPU is a valid result, not an error.
  return 0;
}

bool ranks_share_gpus() {
  const char* shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return shared && std::string_view(shared) == "1";
}

int cuda_device_of(int64_t local_rank) {
  const int count = cuda_device_count();
  return static_cast<int>(ranks_share_gpus() && count > 0 ? local_rank % count : local_rank);
}

void check_cuda_device(int index) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    throw UserError(concat("no GPU can be used on this machine: ", cudaGetErrorName(status), " (",
                           cudaGetErrorString(status), "); check the driver, or run with parallel.device=cpu"));
  }
  BLIPFT_USER_CHECK(index >= 0 && index < count, "requested GPU ", index, ", but this process sees ", count,
                    " GPU(s), numbered from 0 (see CUDA_VISIBLE_DEVICES); start fewer ranks on this machine");
  cudaDeviceProp gpu{};
  BLIPFT_CUDA_CHECK(cudaGetDeviceProperties(&gpu, index));
  (void)code_for(built_architectures(), gpu.name, gpu.major, gpu.minor);
}

std::unique_ptr<Device> make_cuda_device(int index) {
  check_cuda_device(index);
  return std::make_unique<CudaDevice>(index);
}

}  // namespace blipft
