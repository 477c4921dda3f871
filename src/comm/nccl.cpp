// Collectives of GPU ranks: through NCCL, whose unique id MPI broadcasts, or directly through other GPUs' memory.
#include <cuda_runtime.h>
#include <nccl.h>

#include <memory>

#include "blipft/comm.h"
#include "blipft/error.h"
#include "comm/peer_memory.h"
#include "comm/peer_reduce.h"
#include "cuda/device/cuda_check.h"

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
    case DType::u8: case DType::f8e4m3: case DType::f8e5m2: return ncclUint8;
  }
  return ncclUint8;
}

cudaStream_t cuda(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

class NcclComm : public Comm {
 public:
  NcclComm(const World& world, Device& device, int64_t max_ctas)
      : world_(world), rank_(world.rank()), size_(world.size()), max_ctas_(max_ctas) {
    check_sharing();
    device.bind_thread();
    const int64_t free_before = device.memory().free;
    ncclUniqueId id;
    if (rank_ == 0) BLIPFT_NCCL(ncclGetUniqueId(&id));
    world.broadcast(&id, sizeof id, 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = static_cast<int>(max_ctas > 0 ? max_ctas : kDefaultCtas);
    BLIPFT_NCCL(ncclCommInitRankConfig(&comm_, static_cast<int>(size_), id, static_cast<int>(rank_), &config));
    device_bytes_ = free_before - device.memory().free;
    BLIPFT_CUDA_CHECK(cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking));
    for (cudaEvent_t* event : {&forked_, &joined_})
      BLIPFT_CUDA_CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  }
  ~NcclComm() override {
    ncclCommDestroy(comm_);
    (void)cudaEventDestroy(forked_);
    (void)cudaEventDestroy(joined_);
    (void)cudaStreamDestroy(beside_);
  }
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  std::string name() const override { return version_text(); }
  int64_t device_bytes() const override { return device_bytes_; }
  std::string failure() const override {
    ncclResult_t result = ncclSuccess;
    const ncclResult_t status = ncclCommGetAsyncError(comm_, &result);
    if (status != ncclSuccess) result = status;
    if (result == ncclSuccess || result == ncclInProgress) return {};
    return concat("NCCL: ", ncclGetErrorString(result), ": ", ncclGetLastError(nullptr));
  }
  bool expose(const Tensor& block, bool gathers, bool reductions) override {
    if (!peers_.open(world_, block.data, block.bytes())) return false;
    gathers_ = gathers;
    if (reductions) reduce_ = PeerReduce::make(world_, peers_, reduction_blocks());
    return true;
  }
  void withdraw() override {
    if (reduce_) reduce_->close();
    peers_.close();
    world_.barrier();                      // no rank has this rank's memory open any more
    reduce_.reset();
  }
  bool direct_gathers() const override { return peers_.any() && gathers_; }
  bool direct_reductions() const override { return reduce_ != nullptr; }

  void all_gather(const Tensor& shard, const Tensor& full, Stream stream) override {
    BLIPFT_CHECK(full.numel() == shard.numel() * size_, "all_gather: ", full.shape.str(), " is not ", size_, " times ",
                 shard.shape.str());
    // An in-place shard has just been written, at a different offset on each rank, so it cannot be copied directly.
    const bool in_place = shard.data == static_cast<char*>(full.data) + rank_ * shard.bytes();
    if (direct_gathers() && !in_place && peers_.contains(shard)) return gather_by_copies(shard, full, cuda(stream));
    BLIPFT_NCCL(ncclAllGather(shard.data, full.data, static_cast<size_t>(shard.numel()), nccl_type(shard.dtype), comm_,
                              cuda(stream)));
  }
  bool reduce_scatter_accumulates(const Tensor& full) const override { return directly(full); }
  void reduce_scatter(const Tensor& full, const Tensor& shard, Stream stream, bool accumulate) override {
    BLIPFT_CHECK(full.numel() == shard.numel() * size_ && full.dtype == shard.dtype,
                 "reduce_scatter: ", full.shape.str(), " is not ", size_, " times ", shard.shape.str());
    if (directly(full)) return reduce_->reduce_scatter(full, shard, accumulate, stream.handle);
    BLIPFT_CHECK(!accumulate, "NCCL's reduce_scatter does not accumulate");
    BLIPFT_NCCL(ncclReduceScatter(full.data, shard.data, static_cast<size_t>(shard.numel()), nccl_type(shard.dtype),
                                  ncclSum, comm_, cuda(stream)));
  }
  void all_reduce(const Tensor& tensor, Stream stream) override {
    if (directly(tensor)) return reduce_->all_reduce(tensor, stream.handle);
    BLIPFT_NCCL(ncclAllReduce(tensor.data, tensor.data, static_cast<size_t>(tensor.numel()), nccl_type(tensor.dtype),
                              ncclSum, comm_, cuda(stream)));
  }

 private:
  // With 8, 16 and 32 thread blocks, 32 gave the fastest steps on 4 H200s, with ddp and with fsdp.
  static constexpr int64_t kDefaultCtas = 32;

  // Number of multiprocessors of a direct reduction: 8, 16 and 24 gave slower steps.
  static constexpr int64_t kReduceBlocks = 12;
  // Smaller tensors go through NCCL, which allows them in any stream.
  static constexpr int64_t kMinDirectBytes = 64 << 10;

  static int version() {
    int version = 0;
    ncclGetVersion(&version);
    return version;
  }
  static std::string version_text() { return "nccl " + nccl_library().found; }
  void check_sharing() const {
    constexpr int kShares = 23000;
    BLIPFT_USER_CHECK(version() >= kShares || !ranks_share_gpus() || world_.local_size() <= cuda_device_count(),
                      "NCCL_MULTI_RANK_GPU_ENABLE=1: ", world_.local_size(), " ranks on ", world_.host(), ", which has ",
                      counted(cuda_device_count(), "GPU"), "; ", version_text(), " lets no ranks share one, 2.30 does: start ",
                      "one rank a GPU, or put a newer libnccl.so.2 into LD_LIBRARY_PATH");
  }

  int64_t reduction_blocks() const { return max_ctas_ > 0 ? max_ctas_ : kReduceBlocks; }

  bool directly(const Tensor& full) const {
    return reduce_ && full.bytes() >= kMinDirectBytes && peers_.contains(full) && PeerReduce::suits(full, size_);
  }

  // Copies the other ranks' shards one after another. Each rank begins with its next neighbour, so that all links are
  // busy and no GPU is read by two ranks at once. The own shard needs no link: a second stream copies it in parallel.
  void gather_by_copies(const Tensor& shard, const Tensor& full, cudaStream_t stream) {
    const auto copy = [&](int64_t r, cudaStream_t in) {
      BLIPFT_CUDA_CHECK(cudaMemcpyAsync(static_cast<char*>(full.data) + r * shard.bytes(), peers_.at(shard.data, r),
                                        static_cast<size_t>(shard.bytes()), cudaMemcpyDeviceToDevice, in));
    };
    BLIPFT_CUDA_CHECK(cudaEventRecord(forked_, stream));
    BLIPFT_CUDA_CHECK(cudaStreamWaitEvent(beside_, forked_, 0));
    copy(rank_, beside_);
    BLIPFT_CUDA_CHECK(cudaEventRecord(joined_, beside_));
    for (int64_t i = 1; i < size_; ++i) copy((rank_ + i) % size_, stream);
    BLIPFT_CUDA_CHECK(cudaStreamWaitEvent(stream, joined_, 0));
  }

  const World& world_;
  PeerMemory peers_;
  std::unique_ptr<PeerReduce> reduce_;     // null without direct reductions
  bool gathers_ = false;
  cudaStream_t beside_ = nullptr;          // copies the own shard of a direct gather
  cudaEvent_t forked_ = nullptr, joined_ = nullptr;
  int64_t rank_, size_, max_ctas_;
  ncclComm_t comm_ = nullptr;
  int64_t device_bytes_ = 0;
};

}  // namespace

LibraryVersion nccl_library() {
  int found = 0;
  const bool known = ncclGetVersion(&found) == ncclSuccess;
  const auto text = [](int version) { return concat(version / 10000, ".", version / 100 % 100, ".", version % 100); };
  return {"NCCL", text(NCCL_VERSION_CODE), known ? text(found) : "", 1};
}

std::unique_ptr<Comm> make_nccl_comm(const World& world, Device& device, int64_t max_ctas) {
  return std::make_unique<NcclComm>(world, device, max_ctas);
}

}  // namespace blipft
