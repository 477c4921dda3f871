// Collectives of GPU ranks over NCCL; its unique id travels through MPI.
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstring>

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

class NcclComm : public Comm {
 public:
  NcclComm(const World& world, Device& device) : rank_(world.rank()), size_(world.size()) {
    device.bind_thread();
    const int64_t free_before = device.memory().free;
    ncclUniqueId id;
    if (rank_ == 0) BLIPFT_NCCL(ncclGetUniqueId(&id));
    world.broadcast(&id, sizeof id, 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
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

  void all_gather(const Tensor& shard, const Tensor& full, Stream stream) override {
    BLIPFT_CHECK(full.numel() == shard.numel() * size_, "all_gather: ", full.shape.str(), " is not ", size_, " times ",
                 shard.shape.str());
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
  int64_t rank_, size_;
  ncclComm_t comm_ = nullptr;
  int64_t device_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Comm> make_nccl_comm(const World& world, Device& device) {
  return std::make_unique<NcclComm>(world, device);
}

}  // namespace blipft
