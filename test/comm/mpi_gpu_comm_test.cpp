// Collectives between GPUs of one machine: copies and kernels over the other ranks' memory, against sums on the host.
#include <doctest/doctest.h>

#include <cstring>
#include <iostream>
#include <vector>

#include "blipft/comm.h"
#include "blipft/device.h"
#include "ops/bf16.h"
#include "strategies/strategy_harness.h"

#if defined(BLIPFT_CUDA)
#include "cuda/device/loaded_code.h"
#endif

using namespace blipft;
using namespace blipft::testing;

namespace {

float value_of(int64_t rank, int64_t i) { return static_cast<float>((i * 37 + rank * 1001) % 2048 - 1024) / 256; }

std::vector<char> to_bytes(const std::vector<float>& values, DType dtype) {
  std::vector<char> bytes(values.size() * static_cast<size_t>(dtype_size(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::f32) std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    else reinterpret_cast<uint16_t*>(bytes.data())[i] = float_to_bf16(values[i]);
  }
  return bytes;
}

std::vector<float> to_floats(const std::vector<char>& bytes, DType dtype) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(dtype_size(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::f32) std::memcpy(&values[i], bytes.data() + 4 * i, 4);
    else values[i] = bf16_to_float(reinterpret_cast<const uint16_t*>(bytes.data())[i]);
  }
  return values;
}

// A rank's numbers as they are in memory.
std::vector<float> numbers(int64_t rank, int64_t count, DType dtype) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = value_of(rank, i);
  return to_floats(to_bytes(values, dtype), dtype);
}

class GpuComm {
 public:
  static constexpr int64_t kBytes = 96 << 20;
  explicit GpuComm(bool direct) : GpuComm(direct, mpi_world().size()) {}
  GpuComm(bool direct, int64_t shard_ranks)
      : world_(mpi_world()), device(make_cuda_device(cuda_device_of(world_.local_rank()))) {
    device->bind_thread();
    owner_ = std::make_unique<CommGroups>(world_, GroupSizes{shard_ranks, world_.size() / shard_ranks}, *device,
                                          [&](const World& ranks, bool scalars) {
                                            return make_nccl_comm(ranks, *device, scalars ? 1 : 0);
                                          });
    groups = owner_->groups();
    comm = groups.shard;
    block = static_cast<char*>(device->allocate(kBytes));
    if (!direct) return;
    owner_->expose({block, DType::u8, {kBytes}}, true, true);
    REQUIRE(comm->direct_gathers() == (comm->size() > 1));
  }
  ~GpuComm() {
    device->synchronize();
    owner_->withdraw();
    owner_.reset();
    device->free(block);
  }
  Tensor tensor(DType dtype, int64_t count) {
    const Tensor made{block + used_, dtype, {count}};
    used_ += (made.bytes() + 255) / 256 * 256;
    REQUIRE(used_ <= kBytes);
    return made;
  }
  Tensor tensor(const std::vector<float>& values, DType dtype) {
    const Tensor made = tensor(dtype, static_cast<int64_t>(values.size()));
    write(made, values);
    return made;
  }
  void write(const Tensor& to, const std::vector<float>& values) {
    const std::vector<char> bytes = to_bytes(values, to.dtype);
    device->copy(to.data, bytes.data(), to.bytes(), device->comm_stream());
    device->synchronize();
  }
  std::vector<float> read(const Tensor& from) {
    std::vector<char> bytes(static_cast<size_t>(from.bytes()));
    device->synchronize();
    device->copy(bytes.data(), from.data, from.bytes(), device->comm_stream());
    device->synchronize();
    return to_floats(bytes, from.dtype);
  }
  void clear() { used_ = 0; }

 private:
  World& world_;
  int64_t used_ = 0;

 public:
  std::unique_ptr<Device> device;
  Groups groups;
  Comm* comm = nullptr;                    // groups.shard
  char* block = nullptr;

 private:
  std::unique_ptr<CommGroups> owner_;
};

bool no_gpus(const char* test) {
  const World& world = mpi_world();
  if (world.size() > 1 && cuda_device_of(world.local_size() - 1) < cuda_device_count()) return false;
  if (world.rank() == 0) std::cout << "SKIPPED: " << test << " (needs a GPU for each of several ranks)" << std::endl;
  return true;
}

// The kernel that sums needs code for compute capability 9.0 or later; with other code NCCL is taken instead of it.
bool no_direct_sums(const GpuComm& gpu, [[maybe_unused]] const char* test) {
#if defined(BLIPFT_CUDA)
  if (const LoadedCode code = loaded_code(); code.architecture.number < 90) {
    CHECK_FALSE(gpu.comm->direct_reductions());
    if (mpi_world().rank() == 0) std::cout << "SKIPPED: " << test << " (" << code.text() << ")" << std::endl;
    return true;
  }
#endif
  REQUIRE(gpu.comm->direct_reductions());
  return false;
}

// Sum in rank order in f32, plus `before`, rounded once.
std::vector<float> sums(int64_t ranks, int64_t first, int64_t count, int64_t all, DType dtype,
                        const std::vector<float>& before) {
  std::vector<float> total(static_cast<size_t>(count), 0.0f);
  for (int64_t r = 0; r < ranks; ++r) {
    const std::vector<float> theirs = numbers(r, all, dtype);
    for (int64_t i = 0; i < count; ++i) total[static_cast<size_t>(i)] += theirs[static_cast<size_t>(first + i)];
  }
  for (size_t i = 0; i < before.size(); ++i) total[i] += before[i];
  return to_floats(to_bytes(total, dtype), dtype);
}

}  // namespace

TEST_SUITE("mpi gpu comm") {
  TEST_CASE("sums and gathers through the other ranks' memory are exact") {
    if (no_gpus("sums and gathers through the other ranks' memory")) return;
    const int64_t ranks = mpi_world().size(), rank = mpi_world().rank();
    GpuComm gpu(true);
    CHECK(gpu.comm->direct_gathers());
    if (no_direct_sums(gpu, "sums through the other ranks' memory")) return;
    const Stream stream = gpu.device->comm_stream();
    // Below and above the size from which kernels do it; many pieces; a ragged last piece.
    for (const int64_t count : {64, 16 * 1024, 64 * 1024 + 64, 2 * 1024 * 1024 + 192}) {
      for (const DType dtype : {DType::bf16, DType::f32}) {
        CAPTURE(count);
        CAPTURE(dtype_name(dtype));
        gpu.clear();
        const Tensor shard = gpu.tensor(dtype, count);     // a gather asks shards to lie alike on all ranks
        if (rank > 0) gpu.tensor(DType::u8, 4096 * rank);  // sums ask for nothing of the kind
        const Tensor full = gpu.tensor(numbers(rank, ranks * count, dtype), dtype);
        gpu.comm->reduce_scatter(full, shard, stream);
        const std::vector<float> expected = sums(ranks, rank * count, count, ranks * count, dtype, {});
        const bool direct = gpu.comm->reduce_scatter_accumulates(full);
        CHECK(direct == (full.bytes() >= 64 << 10));
        if (direct) {
          CHECK(gpu.read(shard) == expected);
          gpu.comm->reduce_scatter(full, shard, stream, true);
          CHECK(gpu.read(shard) == sums(ranks, rank * count, count, ranks * count, dtype, expected));
        }
        gpu.write(shard, numbers(rank, count, dtype));
        mpi_world().barrier();  // a gather waits for nobody: its sources are there before, and stay until after it
        gpu.comm->all_gather(shard, full, stream);
        std::vector<float> gathered;
        for (int64_t r = 0; r < ranks; ++r) {
          const std::vector<float> theirs = numbers(r, count, dtype);
          gathered.insert(gathered.end(), theirs.begin(), theirs.end());
        }
        CHECK(gpu.read(full) == gathered);
        mpi_world().barrier();
        // In place, the shard written in the stream before: nobody else takes care that it is there.
        gpu.write(full, std::vector<float>(gathered.size(), -1.0f));
        const Tensor own = full.part(rank * count, {count});
        gpu.device->copy(own.data, shard.data, shard.bytes(), stream);
        gpu.comm->all_gather(own, full, stream);
        CHECK(gpu.read(full) == gathered);
        mpi_world().barrier();

        const Tensor everything = gpu.tensor(numbers(rank, count, dtype), dtype);
        gpu.comm->all_reduce(everything, stream);
        if (everything.bytes() >= 64 << 10) CHECK(gpu.read(everything) == sums(ranks, 0, count, count, dtype, {}));
      }
    }
  }

  TEST_CASE("a captured sum over the other ranks' memory can be replayed") {
    if (no_gpus("a captured sum over the other ranks' memory")) return;
    const int64_t ranks = mpi_world().size(), rank = mpi_world().rank(), count = 256 * 1024;
    GpuComm gpu(true);
    if (no_direct_sums(gpu, "a captured sum over the other ranks' memory")) return;
    const Stream stream = gpu.device->comm_stream();
    const Tensor full = gpu.tensor(numbers(rank, ranks * count, DType::f32), DType::f32);
    const Tensor shard = gpu.tensor(std::vector<float>(static_cast<size_t>(count), 0.0f), DType::f32);
    const auto graph = gpu.device->capture(stream, [&] {
      for (int i = 0; i < 3; ++i) gpu.comm->reduce_scatter(full, shard, stream, true);
    });
    std::vector<float> expected(static_cast<size_t>(count), 0.0f);
    for (int replay = 0; replay < 4; ++replay) {
      graph->launch(stream);
      for (int i = 0; i < 3; ++i) expected = sums(ranks, rank * count, count, ranks * count, DType::f32, expected);
    }
    CHECK(gpu.read(shard) == expected);
  }

  // As a step with hybrid sharding has them: collectives of all three groups, in one stream.
  TEST_CASE("collectives of split communicators") {
    if (no_gpus("collectives of split communicators")) return;
    const int64_t ranks = mpi_world().size(), rank = mpi_world().rank(), count = 64 * 1024 + 64;
    for (int64_t shard_ranks = 1; shard_ranks < ranks; ++shard_ranks) {
      if (ranks % shard_ranks != 0) continue;
      for (const bool direct : {false, true}) {
        CAPTURE(shard_ranks);
        CAPTURE(direct);
        GpuComm gpu(direct, shard_ranks);
        CHECK(gpu.groups.replicate->direct_reductions() == direct);
        const int64_t index = rank % shard_ranks, all = shard_ranks * count;
        const Stream stream = gpu.device->comm_stream();
        const Tensor shard = gpu.tensor(DType::f32, count);
        const Tensor full = gpu.tensor(numbers(rank, all, DType::f32), DType::f32);
        const Tensor one = gpu.tensor(numbers(rank, 1, DType::f32), DType::f32);
        const Tensor gathered = gpu.tensor(DType::f32, all);
        const auto step = [&] {
          gpu.groups.all->all_reduce(one, stream);
          gpu.groups.shard->reduce_scatter(full, shard, stream);
          gpu.groups.replicate->all_reduce(shard, stream);
        };
        step();
        // The numbers are multiples of 1/256 below 8 times the ranks: their sums are exact in f32 in any order.
        const std::vector<float> expected = sums(ranks, index * count, count, all, DType::f32, {});
        CHECK(gpu.read(shard) == expected);
        CHECK(gpu.read(one) == sums(ranks, 0, 1, 1, DType::f32, {}));
        mpi_world().barrier();                           // a direct gather waits for nobody
        gpu.groups.shard->all_gather(shard, gathered, stream);
        CHECK(gpu.read(gathered) == sums(ranks, 0, all, all, DType::f32, {}));
        mpi_world().barrier();
        const auto graph = gpu.device->capture(stream, step);
        for (int replay = 0; replay < 3; ++replay) graph->launch(stream);
        CHECK(gpu.read(shard) == expected);
      }
    }
  }

  TEST_CASE("without direct access NCCL does the same up to the order of sums") {
    if (no_gpus("collectives by NCCL")) return;
    const int64_t ranks = mpi_world().size(), rank = mpi_world().rank(), count = 64 * 1024 + 64;
    GpuComm gpu(false);
    CHECK_FALSE(gpu.comm->direct_gathers());
    CHECK_FALSE(gpu.comm->direct_reductions());
    const Stream stream = gpu.device->comm_stream();
    const Tensor full = gpu.tensor(numbers(rank, ranks * count, DType::f32), DType::f32);
    const Tensor shard = gpu.tensor(DType::f32, count);
    gpu.comm->reduce_scatter(full, shard, stream);
    const std::vector<float> expected = sums(ranks, rank * count, count, ranks * count, DType::f32, {});
    const std::vector<float> got = gpu.read(shard);
    // The numbers are multiples of 1/256 below 8 times the ranks: their sums are exact in f32 in any order.
    CHECK(got == expected);
  }
}
