// Collectives of CPU ranks over MPI. Sums accumulate in f32 in the group's rank order, so that their bits depend only
// on the size of the group.
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "blipft/comm.h"
#include "blipft/error.h"
#include "comm/communicator.h"
#include "comm/mpi_check.h"
#include "comm/mpi_wait.h"
#include "ops/bf16.h"

namespace blipft {

namespace {

void check_accumulates(const Comm& comm, const Tensor& full, bool accumulate) {
  BLIPFT_CHECK(!accumulate || comm.reduce_scatter_accumulates(full), comm.name(), ": reduce_scatter into a shard does ",
               "not add to what it holds");
}

class MpiComm : public Comm {
 public:
  // Uses the world's communicator: one thread calls the collectives of both, in the same order on every rank.
  explicit MpiComm(const World& world)
      : activity_(world.activity()), rank_(world.rank()), size_(world.size()), comm_(world.communicator().mpi) {}
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  std::string name() const override { return "mpi"; }
  int64_t device_bytes() const override { return 0; }

  void all_gather(const Tensor& shard, const Tensor& full, Stream) override {
    const Activity::Scope scope(activity_, Activity::RankOperation::gather);
    BLIPFT_CHECK(full.numel() == shard.numel() * size_, "all_gather: ", full.shape.str(), " is not ", size_, " times ",
                 shard.shape.str());
    // MPI must be informed if the shard is already at its position in `full`.
    const bool in_place = shard.data == static_cast<char*>(full.data) + rank_ * shard.bytes();
    pieces(shard.bytes(), [&](int64_t first, int64_t count) {
      // Pieces of different ranks are shard.bytes() apart in `full`: a resized datatype sets this stride.
      MPI_Datatype strided, resized;
      MPI_Type_contiguous(static_cast<int>(count), MPI_BYTE, &strided);
      MPI_Type_create_resized(strided, 0, static_cast<MPI_Aint>(shard.bytes()), &resized);
      MPI_Type_commit(&resized);
      complete("MPI_Iallgather", count * size_, [&](MPI_Request* request) {
        return MPI_Iallgather(in_place ? MPI_IN_PLACE : static_cast<char*>(shard.data) + first, static_cast<int>(count), MPI_BYTE,
                              static_cast<char*>(full.data) + first, 1, resized, comm_, request);
      });
      MPI_Type_free(&strided);
      MPI_Type_free(&resized);
    });
  }

  void reduce_scatter(const Tensor& full, const Tensor& shard, Stream, bool accumulate) override {
    const Activity::Scope scope(activity_, Activity::RankOperation::reduce_scatter);
    check_accumulates(*this, full, accumulate);
    BLIPFT_CHECK(full.numel() == shard.numel() * size_ && full.dtype == shard.dtype,
                 "reduce_scatter: ", full.shape.str(), " is not ", size_, " times ", shard.shape.str());
    const int64_t size = dtype_size(full.dtype);
    const int64_t n = shard.numel();
    const int64_t step = std::min<int64_t>(n, kPieceElements);
    received_.resize(static_cast<size_t>(step * size_ * size));
    staged_.resize(received_.size());
    sum_.resize(static_cast<size_t>(step));
    for (int64_t first = 0; first < n; first += step) {
      const int64_t count = std::min(step, n - first);
      for (int64_t r = 0; r < size_; ++r)
        std::memcpy(staged_.data() + r * count * size, static_cast<char*>(full.data) + (r * n + first) * size,
                    static_cast<size_t>(count * size));
      complete("MPI_Ialltoall", count * size * size_, [&](MPI_Request* request) {
        return MPI_Ialltoall(staged_.data(), static_cast<int>(count * size), MPI_BYTE, received_.data(),
                             static_cast<int>(count * size), MPI_BYTE, comm_, request);
      });
      sum_ranks(count, full.dtype);
      store(static_cast<char*>(shard.data) + first * size, count, full.dtype);
    }
  }

  void all_reduce(const Tensor& tensor, Stream) override {
    const Activity::Scope scope(activity_, Activity::RankOperation::all_reduce);
    const int64_t size = dtype_size(tensor.dtype);
    const int64_t n = tensor.numel();
    const int64_t step = std::min<int64_t>(n, kPieceElements);
    received_.resize(static_cast<size_t>(step * size_ * size));
    sum_.resize(static_cast<size_t>(step));
    for (int64_t first = 0; first < n; first += step) {
      const int64_t count = std::min(step, n - first);
      char* piece = static_cast<char*>(tensor.data) + first * size;
      complete("MPI_Iallgather", count * size * size_, [&](MPI_Request* request) {
        return MPI_Iallgather(piece, static_cast<int>(count * size), MPI_BYTE, received_.data(),
                              static_cast<int>(count * size), MPI_BYTE, comm_, request);
      });
      sum_ranks(count, tensor.dtype);
      store(piece, count, tensor.dtype);
    }
  }

 private:
  static constexpr int64_t kPieceElements = 1 << 20;

  template <class Body>
  void pieces(int64_t bytes, Body body) const {
    constexpr int64_t kPiece = 64 << 20;
    for (int64_t first = 0; first < bytes; first += kPiece) body(first, std::min(kPiece, bytes - first));
  }

  void sum_ranks(int64_t count, DType dtype) {
    std::fill(sum_.begin(), sum_.begin() + count, 0.0f);
    for (int64_t r = 0; r < size_; ++r) {
      if (dtype == DType::f32) {
        const float* from = reinterpret_cast<const float*>(received_.data()) + r * count;
        for (int64_t i = 0; i < count; ++i) sum_[static_cast<size_t>(i)] += from[i];
      } else {
        BLIPFT_CHECK(dtype == DType::bf16, "sums are made in f32 or bf16, not ", dtype_name(dtype));
        const uint16_t* from = reinterpret_cast<const uint16_t*>(received_.data()) + r * count;
        for (int64_t i = 0; i < count; ++i) sum_[static_cast<size_t>(i)] += bf16_to_float(from[i]);
      }
    }
  }

  void store(char* to, int64_t count, DType dtype) const {
    if (dtype == DType::f32) {
      std::memcpy(to, sum_.data(), static_cast<size_t>(count) * sizeof(float));
    } else {
      uint16_t* out = reinterpret_cast<uint16_t*>(to);
      for (int64_t i = 0; i < count; ++i) out[i] = float_to_bf16(sum_[static_cast<size_t>(i)]);
    }
  }

  Activity& activity_;
  int64_t rank_, size_;
  MPI_Comm comm_;
  std::vector<char> staged_, received_;
  std::vector<float> sum_;
};

class SelfComm : public Comm {
 public:
  explicit SelfComm(Device& device) : device_(device) {}
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  std::string name() const override { return "self"; }
  int64_t device_bytes() const override { return 0; }
  void all_gather(const Tensor& shard, const Tensor& full, Stream stream) override { copy(shard, full, stream); }
  void reduce_scatter(const Tensor& full, const Tensor& shard, Stream stream, bool accumulate) override {
    check_accumulates(*this, full, accumulate);
    copy(full, shard, stream);
  }
  void all_reduce(const Tensor&, Stream) override {}

 private:
  void copy(const Tensor& from, const Tensor& to, Stream stream) {
    if (from.data != to.data) device_.copy(to.data, from.data, from.bytes(), stream);
  }
  Device& device_;
};

// Rank 0 of an imaginary group, for planning.
class PlanComm : public Comm {
 public:
  explicit PlanComm(int64_t size) : size_(size) {}
  int64_t rank() const override { return 0; }
  int64_t size() const override { return size_; }
  std::string name() const override { return "plan"; }
  int64_t device_bytes() const override { return 0; }
  void all_gather(const Tensor&, const Tensor&, Stream) override {}
  void reduce_scatter(const Tensor& full, const Tensor&, Stream, bool accumulate) override {
    check_accumulates(*this, full, accumulate);
  }
  void all_reduce(const Tensor&, Stream) override {}

 private:
  int64_t size_;
};

}  // namespace

std::unique_ptr<Comm> make_self_comm(Device& device) { return std::make_unique<SelfComm>(device); }
std::unique_ptr<Comm> make_mpi_comm(const World& world) { return std::make_unique<MpiComm>(world); }
std::unique_ptr<Comm> make_plan_comm(int64_t size) { return std::make_unique<PlanComm>(size); }

}  // namespace blipft
