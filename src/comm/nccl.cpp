// Collectives of GPU ranks over NCCL; its unique id travels through MPI.
#include <cuda_runtime.h>
#include <nccl.h>

#include <memory>
#include <vector>

#include "blipft/comm.h"
#include "blipft/error.h"

namespace blipft {

namespace {

#define BLIPFT_NCCL(call)                                                                                        \
  do {                                                                                                           \
    const ncclResult_t nccl_result = (call);                                                                     \
    if (nccl_result != ncclSuccess)                                                                              \
      throw Error(concat(#call ": ", ncclGetErrorString(nccl_result), ": ", ncclGetLastError(nullptr)));         \
  } while (false)

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    case DType::u8: return ncclUint8;
  }
  return ncclUint8;
}

cudaStream_t cuda(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

void check_cuda(cudaError_t result, const char* what) {
  if (result != cudaSuccess) throw Error(concat(what, ": ", cudaGetErrorString(result)));
}

// A stream and an event of one copy engine's work.
class CopyLane {
 public:
  CopyLane() {
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities");
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "a stream for copies");
    check_cuda(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "an event for copies");
  }
  ~CopyLane() {
    if (done_) cudaEventDestroy(done_);
    if (stream_) cudaStreamDestroy(stream_);
  }
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;
  // Copies after `start`; `after` waits for it.
  void copy(void* to, const void* from, int64_t bytes, cudaEvent_t start, cudaStream_t after) {
    check_cuda(cudaStreamWaitEvent(stream_, start, 0), "cudaStreamWaitEvent");
    check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_), "copy between GPUs");
    check_cuda(cudaEventRecord(done_, stream_), "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(after, done_, 0), "cudaStreamWaitEvent");
  }
  cudaEvent_t event() const { return done_; }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_ = nullptr;
};

// Addresses of the same allocation in every rank of this machine; own rank included.
class PeerBlocks {
 public:
  PeerBlocks() = default;
  ~PeerBlocks() { close(); }
  void close() {
    for (size_t r = 0; r < addresses_.size(); ++r)
      if (opened_[r]) cudaIpcCloseMemHandle(addresses_[r]);
    addresses_.clear();
    opened_.clear();
    bytes_ = 0;
  }
  PeerBlocks(const PeerBlocks&) = delete;
  PeerBlocks& operator=(const PeerBlocks&) = delete;

  // Collective. False, and nothing kept, when a rank cannot open another's memory.
  bool open(const World& world, const Tensor& block) {
    cudaIpcMemHandle_t mine;
    bool works = world.local_size() == world.size() && cudaIpcGetMemHandle(&mine, block.data) == cudaSuccess;
    std::vector<cudaIpcMemHandle_t> handles(static_cast<size_t>(world.size()));
    world.gather(&mine, sizeof mine, handles.data());
    world.broadcast(handles.data(), static_cast<int64_t>(handles.size() * sizeof mine), 0);
    addresses_.assign(handles.size(), nullptr);
    opened_.assign(handles.size(), false);
    for (size_t r = 0; works && r < handles.size(); ++r) {
      if (static_cast<int64_t>(r) == world.rank()) {
        addresses_[r] = block.data;
        continue;
      }
      works = cudaIpcOpenMemHandle(&addresses_[r], handles[r], cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
      opened_[r] = works;
    }
    (void)cudaGetLastError();              // a refusal is an answer, not an error
    works = world.max(int64_t{works ? 0 : 1}) == 0;
    bytes_ = works ? block.bytes() : 0;
    base_ = static_cast<char*>(block.data);
    return works;
  }
  bool contains(const Tensor& tensor) const {
    const char* data = static_cast<const char*>(tensor.data);
    return data >= base_ && data + tensor.bytes() <= base_ + bytes_;
  }
  bool any() const { return bytes_ > 0; }
  // The place of `tensor` in the block of rank `r`.
  const void* at(const Tensor& tensor, int64_t r) const {
    return static_cast<const char*>(addresses_[static_cast<size_t>(r)]) + (static_cast<const char*>(tensor.data) - base_);
  }

 private:
  std::vector<void*> addresses_;
  std::vector<bool> opened_;
  char* base_ = nullptr;
  int64_t bytes_ = 0;
};

class NcclComm : public Comm {
 public:
  NcclComm(const World& world, Device& device, int64_t max_ctas) : world_(world), rank_(world.rank()), size_(world.size()) {
    device.bind_thread();
    const int64_t free_before = device.memory().free;
    ncclUniqueId id;
    if (rank_ == 0) BLIPFT_NCCL(ncclGetUniqueId(&id));
    world.broadcast(&id, sizeof id, 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = static_cast<int>(max_ctas > 0 ? max_ctas : kDefaultCtas);
    BLIPFT_NCCL(ncclCommInitRankConfig(&comm_, static_cast<int>(size_), id, static_cast<int>(rank_), &config));
    device_bytes_ = free_before - device.memory().free;
  }
  ~NcclComm() override { ncclCommDestroy(comm_); }
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  std::string name() const override {
    int version = 0;
    ncclGetVersion(&version);
    return concat("nccl ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  }
  int64_t device_bytes() const override { return device_bytes_; }
  bool expose(const Tensor& block) override { return peers_.open(world_, block); }
  void withdraw() override {
    peers_.close();
    world_.barrier();
  }
  bool direct_gathers() const override { return peers_.any(); }

  void all_gather(const Tensor& shard, const Tensor& full, Stream stream) override {
    BLIPFT_CHECK(full.numel() == shard.numel() * size_, "all_gather: ", full.shape.str(), " is not ", size_, " times ",
                 shard.shape.str());
    if (peers_.any() && peers_.contains(shard)) return gather_by_copies(shard, full, cuda(stream));
    BLIPFT_NCCL(ncclAllGather(shard.data, full.data, static_cast<size_t>(shard.numel()), nccl_type(shard.dtype), comm_,
                              cuda(stream)));
  }
  void reduce_scatter(const Tensor& full, const Tensor& shard, Stream stream) override {
    BLIPFT_CHECK(full.numel() == shard.numel() * size_ && full.dtype == shard.dtype, "reduce_scatter: ", full.shape.str(),
                 " is not ", size_, " times ", shard.shape.str());
    BLIPFT_NCCL(ncclReduceScatter(full.data, shard.data, static_cast<size_t>(shard.numel()), nccl_type(shard.dtype),
                                  ncclSum, comm_, cuda(stream)));
  }
  void all_reduce(const Tensor& tensor, Stream stream) override {
    BLIPFT_NCCL(ncclAllReduce(tensor.data, tensor.data, static_cast<size_t>(tensor.numel()), nccl_type(tensor.dtype),
                              ncclSum, comm_, cuda(stream)));
  }

 private:
  // Of 8, 16 and 32 thread blocks, 32 gave the fastest steps on 4 H200s, with ddp and with fsdp.
  static constexpr int64_t kDefaultCtas = 32;

  // One copy engine reaches less than half of the link's rate, so each neighbour's shard has a stream of its own.
  void gather_by_copies(const Tensor& shard, const Tensor& full, cudaStream_t stream) {
    while (static_cast<int64_t>(lanes_.size()) < size_) lanes_.push_back(std::make_unique<CopyLane>());
    const cudaEvent_t start = lanes_.back()->event();
    check_cuda(cudaEventRecord(start, stream), "cudaEventRecord");
    for (int64_t i = 1; i < size_; ++i) {
      const int64_t r = (rank_ + i) % size_;
      lanes_[static_cast<size_t>(i - 1)]->copy(static_cast<char*>(full.data) + r * shard.bytes(), peers_.at(shard, r),
                                               shard.bytes(), start, stream);
    }
    check_cuda(cudaMemcpyAsync(static_cast<char*>(full.data) + rank_ * shard.bytes(), shard.data,
                               static_cast<size_t>(shard.bytes()), cudaMemcpyDeviceToDevice, stream), "copy of the own shard");
  }

  const World& world_;
  PeerBlocks peers_;
  std::vector<std::unique_ptr<CopyLane>> lanes_;  // the last one's event marks the start
  int64_t rank_, size_;
  ncclComm_t comm_ = nullptr;
  int64_t device_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Comm> make_nccl_comm(const World& world, Device& device, int64_t max_ctas) {
  return std::make_unique<NcclComm>(world, device, max_ctas);
}

}  // namespace blipft
