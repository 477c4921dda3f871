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
#include <vector>

#include "blipft/tensor.h"

namespace blipft {

/// Half of the workspace is cuBLASLt's, the other half belongs to our own kernels.
constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

cudaDataType_t cuda_type(DType dtype);

/// D [m, n] = epilogue(op(A) op(B) + (accumulate ? C : 0)) in column-major order.
struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  DType input = DType::f32;                 ///< of A and B
  DType input_b = DType::f32;               ///< of B where `input` is fp8, which may be mixed
  DType output = DType::f32;                ///< of C, D and the epilogue's vector
  bool tf32 = false;                        ///< f32 factors are rounded to TF32
  int32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  bool accumulate = false;
  bool in_place = false;                    ///< C is D
  int32_t align_a = 256, align_b = 256, align_c = 256, align_d = 256;  ///< bytes, powers of two
  /// Leading dimensions, elements from a stored column to the next; 0: the columns lie one behind the other.
  int64_t lda = 0, ldb = 0, ldc = 0, ldd = 0;

  auto operator<=>(const GemmProblem&) const = default;
  /// One word without blanks, for the cache file. Leading dimensions are part of it only where there are any.
  std::string key() const;
  /// f32 sums, and full f32 products for f32 factors unless tf32 is asked for.
  cublasComputeType_t compute_type() const { return tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F; }
  DType type_of_b() const { return is_fp8(input) ? input_b : input; }
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

struct GemmBuffers {
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  void* d = nullptr;
  void* epilogue_vector = nullptr;          ///< bias (read) or bias gradient (written)
  float alpha = 1;                          ///< of the product
  const void *scale_a = nullptr, *scale_b = nullptr;  ///< f32 in device memory, of factors in fp8
};

/// Elements from the first to the last of a stored matrix of `columns` columns of `rows`.
inline int64_t stored_elements(int64_t rows, int64_t columns, int64_t leading) {
  return leading > 0 ? (columns - 1) * leading + rows : columns * rows;
}

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
  using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>>;

  Description description;
  Layout a, b, d;
  Layout other_c;                           ///< absent where C is laid out like D
  cublasLtMatrixLayout_t c() const { return other_c ? other_c.get() : d.get(); }
  cublasLtMatmulAlgo_t algorithm{};
  bool supported = false;                   ///< false: cuBLASLt has no algorithm for this problem
  double microseconds = 0;                  ///< as timed; 0: not timed
};

/// The descriptors of `problem`, without an algorithm.
GemmPlan describe_gemm(const GemmProblem& problem, void* epilogue_vector);
/// Whether the epilogue reads or writes a vector.
bool has_epilogue_vector(const GemmProblem& problem);
/// What the heuristic must keep to: workspace, alignments, split-K whose sums have a fixed order.
GemmPlan::Preference make_gemm_preference(const GemmProblem& problem);

/// How long a product that the file does not know is searched for: not timed at all; the heuristic's first 16; or many
/// more, with variations of the fastest (about 0.15 s of GPU time for each product). Of a product that differs from two
/// chosen ones in one size alone, as other micro-batches' do: the choices for the nearest of those, and the heuristic's
/// first.
enum class GemmEffort { heuristic, quick, thorough };

/// What a search found, for benches.
struct GemmSearchReport {
  int64_t candidates = 0;                   ///< how many were timed
  double first_microseconds = 0;            ///< the heuristic's first candidate; 0: not timed
  double best_microseconds = 0;             ///< the chosen one
  std::string first, best;                  ///< their settings
};

struct GemmCandidate;

class GemmPlanner {
 public:
  /// `cache_path` "": no file and no timing.
  explicit GemmPlanner(const std::string& cache_path, GemmEffort effort = GemmEffort::thorough);
  ~GemmPlanner();
  GemmPlanner(const GemmPlanner&) = delete;
  GemmPlanner& operator=(const GemmPlanner&) = delete;

  /// The plan for `problem`: known, or from the file, or timed now. Timing runs on buffers of its own, which are
  /// allocated for it and freed at once, so that no data is touched; it is left out while `stream` is captured (then
  /// the heuristic's first candidate is taken until settle()) or when memory is short.
  ///
  /// Processes that share the file take turns: one searches, the others wait and read its choice, so that all of them
  /// run the same algorithm from the first step on. Whoever searches has first waited for all of its own GPU's work,
  /// collectives too, and so waits for nobody while the others wait for it.
  GemmPlan& prepare(const GemmProblem& problem, const GemmBuffers& buffers, cudaStream_t stream);

  /// Chooses for the products whose timing was left out in a capture, as prepare() does outside of one. Whether there
  /// were any.
  bool settle();

  /// Enqueues the product. `workspace` has kGemmWorkspaceBytes.
  void run(GemmPlan& plan, const GemmProblem& problem, const GemmBuffers& buffers, void* workspace,
      cudaStream_t stream);

  /// Whether the file, or the table that comes with the program, has a line for `problem`.
  bool knows(const GemmProblem& problem) const;
  /// Searches for `problem` with this planner's effort, whatever the file says. `keep`: the file gets the choice.
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
  /// Reads the choices that other processes made meanwhile, or searches and writes, some seconds' worth in a turn.
  void choose(const std::vector<Open>& open);
  /// Times candidates and puts the fastest into `plan`.
  GemmSearchReport search(const GemmProblem& problem, GemmPlan& plan);
  /// What was chosen for products that differ from `problem` in one size alone, by a factor of 2 at most.
  std::vector<cublasLtMatmulAlgo_t> chosen_for_similar(const GemmProblem& problem) const;
  /// Stage one: few launches of many candidates. `best` is the fastest so far (0: none) and is updated; candidates
  /// that do not run are dropped.
  void time_quickly(std::vector<GemmCandidate>& candidates, GemmPlan& plan, const GemmProblem& problem,
                    const TimingBuffers& buffers, const Timing& timing, double& best);
  /// Stage two: rounds of a few candidates in turn, each several launches long; the medians.
  void time_rounds(std::vector<GemmCandidate>& candidates, GemmPlan& plan, const GemmProblem& problem,
                   const TimingBuffers& buffers, const Timing& timing);
  /// The last word: rounds of the fastest in `pool` (sorted) against the heuristic's first.
  void decide(std::vector<GemmCandidate> pool, const cublasLtMatmulAlgo_t& first, GemmPlan& plan,
              const GemmProblem& problem, const TimingBuffers& buffers, const Timing& timing,
              GemmSearchReport& report);
  /// Whether `candidate` gives the results of `reference` but for rounding, and the same bits twice.
  bool verify(const cublasLtMatmulAlgo_t& candidate, const cublasLtMatmulAlgo_t& reference, GemmPlan& plan,
              const GemmProblem& problem, const TimingBuffers& buffers, const Timing& timing);
  cublasStatus_t launch(GemmPlan& plan, const GemmProblem& problem, const GemmBuffers& buffers, void* workspace,
                        cudaStream_t stream);
  static std::map<std::string, CacheEntry> read_cache(const std::string& path);
  /// The table that comes with the program, by the place of the program's file; \"\" when there is none.
  static std::string shipped_table();
  /// Adds lines to the file.
  void add_to_cache(const std::map<std::string, CacheEntry>& found);

  cublasLtHandle_t handle_ = nullptr;
  std::string cache_path_;
  GemmEffort effort_;
  bool warm_ = false;                       ///< the GPU has left its idle clocks
  std::string cache_prefix_;                ///< GPU name and cuBLASLt version, the first words of this GPU's lines
  std::map<std::string, CacheEntry> cache_; ///< every line of the file, other GPUs' too
  std::map<GemmProblem, GemmPlan> plans_;
  std::vector<GemmProblem> open_;          // of plans_: to be timed by settle()
};

}  // namespace blipft
