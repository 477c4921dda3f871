// GemmPlanner: one cuBLASLt algorithm for each distinct matrix product, timed once and stored in a file.
//
// "Same seed, same bits" requires the same algorithm in every run, but timing two almost equally fast algorithms may
// choose either. The cache file makes the choice stable: the first run writes it and later runs read it. Without a
// cache file (path "") nothing is timed and the heuristic's first candidate is used, which is stable too.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "blipft/tensor.h"

namespace blipft {

/// cuBLASLt's part of the workspace; the rest belongs to our own kernels.
constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

cudaDataType_t cuda_type(DType dtype);

/// D [m, n] = epilogue(op(A) op(B) + (accumulate ? C : 0)) in column-major order.
struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  DType input = DType::f32;                 ///< of A and B
  DType input_b = DType::f32;               ///< of B if `input` is fp8: the two fp8 formats may differ
  DType output = DType::f32;                ///< of C, D and the epilogue vector
  bool tf32 = false;                        ///< f32 factors are rounded to TF32
  int32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  bool accumulate = false;
  bool in_place = false;                    ///< C is D
  int32_t align_a = 256, align_b = 256, align_c = 256, align_d = 256;  ///< bytes, powers of two
  /// Leading dimensions (elements between stored columns); 0: the columns are contiguous.
  int64_t lda = 0, ldb = 0, ldc = 0, ldd = 0;

  auto operator<=>(const GemmProblem&) const = default;
  /// One word without blanks, for the cache file. It includes the leading dimensions only if one is not 0.
  std::string key() const;
  /// Sums are f32; products of f32 factors are full f32 unless tf32 is set.
  cublasComputeType_t compute_type() const { return tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F; }
  DType type_of_b() const { return is_fp8(input) ? input_b : input; }
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

struct GemmBuffers {
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  void* d = nullptr;
  void* epilogue_vector = nullptr;          ///< bias (read) or bias gradient (written)
  float alpha = 1;                          ///< factor of the product
  const void *scale_a = nullptr, *scale_b = nullptr;  ///< f32 in device memory, scales of fp8 factors
};

/// Number of elements from the first to the last of a stored matrix of `columns` columns with `rows` elements each.
inline int64_t stored_elements(int64_t rows, int64_t columns, int64_t leading) {
  return leading > 0 ? (columns - 1) * leading + rows : columns * rows;
}

/// Sets the problem's alignments, and in_place, from `buffers`.
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
  using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>>;

  Description description;
  Layout a, b, d;
  Layout other_c;                           ///< absent if C has the layout of D
  cublasLtMatrixLayout_t c() const { return other_c ? other_c.get() : d.get(); }
  cublasLtMatmulAlgo_t algorithm{};
  bool supported = false;                   ///< false: cuBLASLt has no algorithm for this problem
  double microseconds = 0;                  ///< timed duration; 0: not timed
};

/// Returns the descriptors of `problem`, without an algorithm.
GemmPlan describe_gemm(const GemmProblem& problem, void* epilogue_vector);
/// True if the epilogue reads or writes a vector.
bool has_epilogue_vector(const GemmProblem& problem);
/// Returns the constraints for the heuristic: workspace, alignments, and split-K with a fixed order of sums.
GemmPlan::Preference make_gemm_preference(const GemmProblem& problem);

/// How thoroughly to search for the algorithm of a product that is not in the file. heuristic: no timing; quick: the
/// heuristic's first 16 candidates; thorough: many more, with variations of the fastest (about 0.15 s of GPU time per
/// product). If at least two timed products differ in only one size (as with other micro-batches), only the choices for
/// the nearest of these and the heuristic's first candidate are timed.
enum class GemmEffort { heuristic, quick, thorough };

/// Result of a search, for benchmarks.
struct GemmSearchReport {
  int64_t candidates = 0;                   ///< number of timed candidates
  double first_microseconds = 0;            ///< the heuristic's first candidate; 0: not timed
  double best_microseconds = 0;             ///< the chosen one
  std::string first, best;                  ///< their settings
};

struct GemmCandidate;

class GemmPlanner {
 public:
  /// If `cache_path` is "", there is no file and no timing.
  explicit GemmPlanner(const std::string& cache_path, GemmEffort effort = GemmEffort::thorough);
  ~GemmPlanner();
  GemmPlanner(const GemmPlanner&) = delete;
  GemmPlanner& operator=(const GemmPlanner&) = delete;

  /// Returns the plan for `problem`: a known one, one from the file, or one that is timed now. Timing allocates buffers
  /// of its own and frees them at once, so no data is touched. While `stream` is captured, or if memory is short,
  /// nothing is timed: the heuristic's first candidate is used (until settle() if captured).
  ///
  /// Processes that share the file take turns: one searches while the others wait and then read its choice, so that all
  /// run the same algorithm from the first step on. The searching process has first waited for all work on its own GPU,
  /// including collectives, so it never waits for a process that waits for it.
  GemmPlan& prepare(const GemmProblem& problem, const GemmBuffers& buffers, cudaStream_t stream);

  /// Chooses, as prepare() does, for the products that were not timed because they were captured. Returns true if there
  /// were any.
  bool tune_deferred_products();

  /// Enqueues the product. `workspace` has kGemmWorkspaceBytes.
  void run(GemmPlan& plan, const GemmProblem& problem, const GemmBuffers& buffers, void* workspace,
      cudaStream_t stream);

  /// True if the file, or the table that comes with the program, has a line for `problem`.
  bool knows(const GemmProblem& problem) const;
  /// Searches for `problem` with this planner's effort, whatever the file contains. `keep`: writes the choice to the
  /// file.
  GemmSearchReport search(const GemmProblem& problem, bool keep = false);

 private:
  struct CacheEntry {
    double microseconds = 0;
    cublasLtMatmulAlgo_t algorithm{};
  };
  struct Timing;
  struct TimingBuffers;

  bool take_cached(const GemmProblem& problem, GemmPlan& plan) const;
  struct Open {
    const GemmProblem* problem;
    GemmPlan* plan;
  };
  /// Reads the choices of other processes, or searches and writes its own, a few seconds at a time.
  void choose(const std::vector<Open>& open);
  /// Times candidates and puts the fastest into `plan`.
  GemmSearchReport search(const GemmProblem& problem, GemmPlan& plan);
  /// Returns the choices for products that differ from `problem` in exactly one size, by a factor of at most 2.
  std::vector<cublasLtMatmulAlgo_t> chosen_for_similar(const GemmProblem& problem) const;
  /// Stage one: times few launches of many candidates. `best`, the shortest time so far (0: none), is updated;
  /// candidates that do not run are removed.
  void time_quickly(std::vector<GemmCandidate>& candidates, GemmPlan& plan, const GemmProblem& problem,
                    const TimingBuffers& buffers, const Timing& timing, double& best);
  /// Stage two: times a few candidates in turn, several launches each, in several rounds; uses the medians.
  void time_rounds(std::vector<GemmCandidate>& candidates, GemmPlan& plan, const GemmProblem& problem,
                   const TimingBuffers& buffers, const Timing& timing);
  /// Final stage: times the fastest in `pool` (sorted) against the heuristic's first candidate.
  void decide(std::vector<GemmCandidate> pool, const cublasLtMatmulAlgo_t& first, GemmPlan& plan,
              const GemmProblem& problem, const TimingBuffers& buffers, const Timing& timing,
              GemmSearchReport& report);
  /// True if `candidate` gives the results of `reference` except for rounding, and the same bits twice.
  bool verify(const cublasLtMatmulAlgo_t& candidate, const cublasLtMatmulAlgo_t& reference, GemmPlan& plan,
              const GemmProblem& problem, const TimingBuffers& buffers, const Timing& timing);
  cublasStatus_t launch(GemmPlan& plan, const GemmProblem& problem, const GemmBuffers& buffers, void* workspace,
                        cudaStream_t stream);
  static std::map<std::string, CacheEntry> read_cache(const std::string& path);
  /// Adds lines to the cache file.
  void add_to_cache(const std::map<std::string, CacheEntry>& found);

  cublasLtHandle_t handle_ = nullptr;
  std::string cache_path_;
  GemmEffort effort_;
  bool warm_ = false;                       ///< true once the GPU has left its idle clocks
  std::string cache_prefix_;                ///< GPU name and cuBLASLt version, the first words of this GPU's lines
  std::map<std::string, CacheEntry> cache_; ///< all lines of the file, including those of other GPUs
  std::map<GemmProblem, GemmPlan> plans_;
  std::vector<GemmProblem> open_;          // products in plans_ that settle() must time
};

}  // namespace blipft
