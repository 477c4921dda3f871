// Candidates for timing one matrix product: cuBLASLt's heuristic proposals for it and for related products, and
// variations of the fastest candidates found so far.
#pragma once

#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cuda/gemm/planner.h"

namespace blipft {

struct GemmCandidate {
  cublasLtMatmulAlgo_t algorithm{};
  double microseconds = 0;  ///< 0: not timed, or it does not run
};

/// Returns the values of an algorithm's settings, e.g. "id66 tile23 stages35 cluster3 split1 swizzle0 custom2".
std::string algorithm_text(const cublasLtMatmulAlgo_t& algorithm);

/// Proposes each algorithm at most once. All proposals are accepted by cuBLASLt for the problem, fit into the
/// workspace, and have deterministic split-K sums.
class GemmSearch {
 public:
  /// Keeps references; `plan` only needs descriptors.
  GemmSearch(cublasLtHandle_t handle, const GemmPlan& plan, const GemmProblem& problem);

  /// Returns the heuristic's list, at most `count`, best first.
  std::vector<GemmCandidate> heuristic(int count);
  /// Returns the heuristic's proposals for products of similar size, without epilogue, and for each algorithm family.
  std::vector<GemmCandidate> related();
  /// Returns those of `algorithms` that are new and work.
  std::vector<GemmCandidate> among(const std::vector<cublasLtMatmulAlgo_t>& algorithms);
  /// Returns `base` with one setting changed (tile order, options, split-K, cluster, stages, tile); at most `limit`.
  std::vector<GemmCandidate> variations(const cublasLtMatmulAlgo_t& base, size_t limit);

 private:
  /// Adds a heuristic proposal for exactly this product if it is new.
  void take_proposed(const cublasLtMatmulAlgo_t& algorithm, std::vector<GemmCandidate>& to);
  /// Adds `algorithm` if it is new and works. `waves`: number of waves of blocks on the GPU, 0 if unknown.
  bool take(const cublasLtMatmulAlgo_t& algorithm, std::vector<GemmCandidate>& to, double* waves = nullptr);
  void request_algorithms(const GemmPlan& plan, const GemmProblem& problem, int count, const cublasLtMatmulAlgo_t* family,
           std::vector<GemmCandidate>& to);
  std::vector<cublasLtMatmulAlgo_t> families() const;
  void vary_tiles(const cublasLtMatmulAlgo_t& base, size_t limit, std::vector<GemmCandidate>& to);

  cublasLtHandle_t handle_;
  const GemmPlan& plan_;
  const GemmProblem& problem_;
  std::set<std::array<uint64_t, 8>> seen_;
  std::map<int32_t, std::set<uint32_t>> options_;  ///< custom options in the heuristic's proposals, by algorithm family
};

}  // namespace blipft
