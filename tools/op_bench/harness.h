// The timing of one op on the GPU, and the record of all results; see harness.cpp for how.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "blipft/device.h"
#include "blipft/ops.h"

namespace blipft::bench {

/// The bytes of one launch (each input and output once) and its operations (2 for each multiply-add).
struct Cost {
  double bytes = 0;  ///< B
  double flops = 0;  ///< FLOP
};

/// The memory that the op reads its inputs from: device memory, or the L2 cache as far as they fit, as after the op
/// that made them.
enum class Source { memory, cache };

/// The sources that are timed. `both` times the cache too if no tensor is larger than 30 MB.
enum class Sources { memory_alone, both };

struct Result {
  std::string op, shape;
  Source source = Source::memory;
  double microseconds = 0;
  Cost cost;
  std::string fields;  ///< more members for the JSON object, `"name": value, ...`
};

/// Measured rates of this GPU, as upper bounds for all ops.
struct Ceilings {
  double copy = 0;     ///< B/s of a kernel that copies 1 GiB, read and written bytes together
  double product = 0;  ///< FLOP/s of a bf16 product of 8192 x 8192 x 8192
  /// Returns a lower bound of the seconds for `cost`.
  double seconds(const Cost& cost) const;
};

/// Returns "16x257x1408".
std::string dims(std::initializer_list<int64_t> sizes);

class Harness {
 public:
  /// `tf32`: products of f32 factors use TF32.
  Harness(int device_index, const std::string& gemm_cache, bool tf32 = false);
  ~Harness();
  Harness(const Harness&) = delete;
  Harness& operator=(const Harness&) = delete;

  // Tensors of the current case; run() releases their memory.

  /// Returns a tensor of random normals (f32, bf16).
  Tensor tensor(const Shape& shape, DType dtype = DType::bf16, float mean = 0, float std = 1);
  /// Returns a tensor with undefined content.
  Tensor raw(const Shape& shape, DType dtype);
  /// Returns i32 [shape] with number(i) at index i.
  Tensor integers(const Shape& shape, const std::function<int32_t(int64_t)>& number);
  /// Returns i32 token ids below `below`.
  Tensor ids(const Shape& shape, int32_t below);
  Dropout dropout(float p, int64_t samples, int64_t rows_per_sample);

  using Work = std::function<void()>;
  /// Times the op, unless the filter excludes it. `make` creates one set of tensors and returns a function that
  /// launches the op on it once; it is called again for each further set.
  void run(const std::string& op, const std::string& shape, const Cost& cost, const std::function<Work()>& make,
           Sources sources = Sources::both, const std::string& fields = "");

  void measure_ceilings();
  /// Times only cases whose "op shape" contains `text`.
  void set_filter(const std::string& text) { filter_ = text; }
  void print_header() const;
  /// Writes all results. Throws UserError if the file cannot be written.
  void write_json(const std::string& path) const;

  Ops& ops() { return *ops_; }
  Stream stream() const { return device_->compute_stream(); }

 private:
  double measure(const std::vector<Work>& sets);
  void report(const Result& result) const;
  double share(const Result& result) const;
  bool bound_by_copy(const Result& result) const;
  char* take(int64_t bytes);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  char* pool_ = nullptr;
  void* workspace_ = nullptr;
  int64_t* slots_ = nullptr;           // two clock readings
  int64_t used_ = 0, largest_ = 0;     // bytes of the case's tensors
  uint32_t next_stream_ = 1;           // number of the next stream of random numbers
  std::string filter_;
  Ceilings ceilings_;
  std::vector<Result> results_;
};

}  // namespace blipft::bench
