// Which cuBLASLt algorithms are worth timing for one matrix product: what the heuristic proposes, what it proposes for
// related products, and variations of the fastest ones found so far.
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

/// The values of an algorithm's settings, e.g. "id66 tile23 stages35 cluster3 split1 swizzle0 custom2".
std::string algorithm_text(const cublasLtMatmulAlgo_t& algorithm);

/// Proposes each algorithm at most once, and only such as cuBLASLt accepts for the problem, that fit the workspace and
/// whose split-K sums are deterministic.
class GemmSearch {
 public:
  /// Keeps references; `plan` needs descriptors only.
  GemmSearch(cublasLtHandle_t handle, const GemmPlan& plan, const GemmProblem& problem);

  /// The heuristic's list, at most `count`, best guess first.
  std::vector<GemmCandidate> heuristic(int count);
  /// What the heuristic proposes for products of nearly this size, without epilogue, and for each algorithm family.
  std::vector<GemmCandidate> related();
  /// Those of `algorithms` that are new.
  std::vector<GemmCandidate> among(const std::vector<cublasLtMatmulAlgo_t>& algorithms);
  /// `base` with one setting changed (order of tiles, options, split-K, cluster, stages, tile); at most `limit`.
  std::vector<GemmCandidate> variations(const cublasLtMatmulAlgo_t& base, size_t limit);

 private:
  /// Adds what the heuristic proposes for this very product, when it is new.
  void take_proposed(const cublasLtMatmulAlgo_t& algorithm, std::vector<GemmCandidate>& to);
  /// Adds it when it is new and works. `waves`: how often the GPU is filled, 0 when unknown.
  bool take(const cublasLtMatmulAlgo_t& algorithm, std::vector<GemmCandidate>& to, double* waves = nullptr);
  void ask(const GemmPlan& plan, const GemmProblem& problem, int count, const cublasLtMatmulAlgo_t* family,
           std::vector<GemmCandidate>& to);
  std::vector<cublasLtMatmulAlgo_t> families() const;
  void vary_tiles(const cublasLtMatmulAlgo_t& base, size_t limit, std::vector<GemmCandidate>& to);

  cublasLtHandle_t handle_;
  const GemmPlan& plan_;
  const GemmProblem& problem_;
  std::set<std::array<uint64_t, 8>> seen_;
  std::map<int32_t, std::set<uint32_t>> options_;  ///< custom options in the heuristic's proposals, by family
};

}  // namespace blipft
