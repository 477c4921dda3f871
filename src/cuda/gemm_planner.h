// GemmPlanner: one cuBLASLt algorithm for each distinct matrix product, timed once and remembered in a file.
//
// "Same seed, same bits" needs the same algorithm in every run, and two timings of nearly equal algorithms may pick
// differently. The cache file is what makes the choice stable: the first run writes it and later runs read it. Without
// a cache file (cache path "") nothing is timed and the heuristic's first candidate is taken, which is stable too.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <map>
#include <memory>
#include <string>

#include "blipft/tensor.h"

namespace blipft {

/// Half of the workspace is cuBLASLt's, the other half belongs to our own kernels.
constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

/// D [m, n] = epilogue(op(A) op(B) + (accumulate ? C : 0)) in column-major order, all matrices packed, C like D.
struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  DType input = DType::f32;                 ///< of A and B
  DType output = DType::f32;                ///< of C, D and the epilogue's vector
  int32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  bool accumulate = false;
  bool in_place = false;                    ///< C is D
  int32_t align_a = 256, align_b = 256, align_c = 256, align_d = 256;  ///< bytes, powers of two

  auto operator<=>(const GemmProblem&) const = default;
  /// One word without blanks, for the cache file.
  std::string key() const;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

struct GemmBuffers {
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  void* d = nullptr;
  void* epilogue_vector = nullptr;          ///< bias (read) or bias gradient (written)
};

/// Fills in the alignments that `buffers` have.
void set_alignments(GemmProblem& problem, const GemmBuffers& buffers);

/// cuBLASLt's descriptors of one problem and the algorithm chosen for it.
struct GemmPlan {
  template <auto destroy>
  struct Destroy {
    template <class T>
    void operator()(T* handle) const noexcept { (void)destroy(handle); }
  };
  using Description = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
  using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;

  Description description;
  Layout a, b, d;
  cublasLtMatmulAlgo_t algorithm{};
  bool supported = false;                   ///< false: cuBLASLt has no algorithm for this problem
  double microseconds = 0;                  ///< as timed; 0: not timed
};

class GemmPlanner {
 public:
  /// `cache_path` "": no file and no timing.
  explicit GemmPlanner(const std::string& cache_path);
  ~GemmPlanner();
  GemmPlanner(const GemmPlanner&) = delete;
  GemmPlanner& operator=(const GemmPlanner&) = delete;

  /// The plan for `problem`: known, or from the file, or timed now. Timing runs on buffers of its own, which are
  /// allocated for it and freed at once, so that no data is touched; it is left out while `stream` is captured (then
  /// the heuristic's first candidate is taken) or when memory is short.
  GemmPlan& prepare(const GemmProblem& problem, const GemmBuffers& buffers, cudaStream_t stream);

  /// Enqueues the product. `workspace` has kGemmWorkspaceBytes.
  void run(GemmPlan& plan, const GemmProblem& problem, const GemmBuffers& buffers, void* workspace,
      cudaStream_t stream);

 private:
  struct CacheEntry {
    double microseconds = 0;
    cublasLtMatmulAlgo_t algorithm{};
  };
  struct Timing;
  struct TimingBuffers;

  GemmPlan describe(const GemmProblem& problem, void* epilogue_vector) const;
  bool take_cached(const GemmProblem& problem, GemmPlan& plan) const;
  void choose(const GemmProblem& problem, GemmPlan& plan, bool timed);
  double time_candidate(GemmPlan& plan, const GemmProblem& problem, const TimingBuffers& buffers, const Timing& timing,
                        double best);
  std::map<std::string, CacheEntry> read_cache() const;
  void add_to_cache(const std::string& new_key, const CacheEntry& new_entry);

  cublasLtHandle_t handle_ = nullptr;
  std::string cache_path_;
  std::string cache_prefix_;                ///< GPU name and cuBLASLt version, the first words of this GPU's lines
  std::map<std::string, CacheEntry> cache_; ///< every line of the file, other GPUs' too
  std::map<GemmProblem, GemmPlan> plans_;
};

}  // namespace blipft
