// Candidates of GemmPlanner's search (see search.h).
#include "cuda/gemm/search.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "cuda/device/cuda_check.h"

namespace blipft {
namespace {

using Algorithm = cublasLtMatmulAlgo_t;

template <class T>
T config(const Algorithm& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};
  size_t written = 0;
  if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, &written) !=
      CUBLAS_STATUS_SUCCESS)
    return T{};
  return value;
}

template <class T>
std::optional<Algorithm> with(Algorithm algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute, T value) {
  if (cublasLtMatmulAlgoConfigSetAttribute(&algorithm, attribute, &value, sizeof value) != CUBLAS_STATUS_SUCCESS)
    return std::nullopt;
  return algorithm;
}

template <class T>
T capability(const Algorithm& algorithm, cublasLtMatmulAlgoCapAttributes_t attribute) {
  T value{};
  size_t written = 0;
  if (cublasLtMatmulAlgoCapGetAttribute(&algorithm, attribute, &value, sizeof value, &written) !=
      CUBLAS_STATUS_SUCCESS)
    return T{};
  return value;
}

std::vector<uint32_t> capability_list(const Algorithm& algorithm, cublasLtMatmulAlgoCapAttributes_t attribute) {
  size_t bytes = 0;
  if (cublasLtMatmulAlgoCapGetAttribute(&algorithm, attribute, nullptr, 0, &bytes) != CUBLAS_STATUS_SUCCESS) return {};
  std::vector<uint32_t> values(bytes / sizeof(uint32_t));
  if (values.empty() || cublasLtMatmulAlgoCapGetAttribute(&algorithm, attribute, values.data(), bytes, &bytes) !=
                            CUBLAS_STATUS_SUCCESS)
    return {};
  return values;
}

std::array<uint64_t, 8> words_of(const Algorithm& algorithm) {
  std::array<uint64_t, 8> words;
  std::copy_n(algorithm.data, words.size(), words.begin());
  return words;
}

/// Split-K adds its parts in a fixed order only if they are in workspace; in-place sums are added in order of
/// completion.
bool deterministic(const Algorithm& algorithm) {
  const auto scheme = config<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
  return scheme == CUBLASLT_REDUCTION_SCHEME_NONE || scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

}  // namespace

std::string algorithm_text(const Algorithm& algorithm) {
  return concat("id", config<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_ID), " tile",
                config<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID), " stages",
                config<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID), " cluster",
                config<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID), " split",
                config<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM), " swizzle",
                config<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING), " custom",
                config<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION));
}

GemmSearch::GemmSearch(cublasLtHandle_t handle, const GemmPlan& plan, const GemmProblem& problem)
    : handle_(handle), plan_(plan), problem_(problem) {}

void GemmSearch::take_proposed(const Algorithm& algorithm, std::vector<GemmCandidate>& to) {
  if (seen_.insert(words_of(algorithm)).second) to.push_back({algorithm, 0});
}

bool GemmSearch::take(const Algorithm& algorithm, std::vector<GemmCandidate>& to, double* waves) {
  if (!seen_.insert(words_of(algorithm)).second || !deterministic(algorithm)) return false;
  cublasLtMatmulHeuristicResult_t result{};
  if (cublasLtMatmulAlgoCheck(handle_, plan_.description.get(), plan_.a.get(), plan_.b.get(), plan_.c(),
                              plan_.d.get(), &algorithm, &result) != CUBLAS_STATUS_SUCCESS)
    return false;
  if (result.workspaceSize > static_cast<size_t>(kGemmWorkspaceBytes)) return false;
  if (waves) *waves = static_cast<double>(result.wavesCount);
  to.push_back({algorithm, 0});
  return true;
}

void GemmSearch::request_algorithms(const GemmPlan& plan, const GemmProblem& problem, int count, const Algorithm* family,
                     std::vector<GemmCandidate>& to) {
  const GemmPlan::Preference preference = make_gemm_preference(problem);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(count));
  if (family) {
    const auto mode = static_cast<uint32_t>(CUBLASLT_SEARCH_LIMITED_BY_ALGO_ID);
    BLIPFT_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference.get(), CUBLASLT_MATMUL_PREF_SEARCH_MODE, &mode,
                                                             sizeof mode));
    for (auto& result : results) result.algo = *family;
  }
  int found = 0;
  if (cublasLtMatmulAlgoGetHeuristic(handle_, plan.description.get(), plan.a.get(), plan.b.get(), plan.c(),
                                     plan.d.get(), preference.get(), count, results.data(),
                                     &found) != CUBLAS_STATUS_SUCCESS)
    return;  // no proposal for this product
  for (int i = 0; i < found; ++i) {
    const auto& result = results[static_cast<size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    if (&plan == &plan_) take_proposed(result.algo, to);
    else take(result.algo, to);
    options_[config<int32_t>(result.algo, CUBLASLT_ALGO_CONFIG_ID)].insert(
        config<uint32_t>(result.algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION));
  }
}

std::vector<GemmCandidate> GemmSearch::heuristic(int count) {
  std::vector<GemmCandidate> list;
  request_algorithms(plan_, problem_, count, nullptr, list);
  return list;
}

std::vector<Algorithm> GemmSearch::families() const {
  const cudaDataType_t a = cuda_type(problem_.input), b = cuda_type(problem_.type_of_b()), out = cuda_type(problem_.output);
  std::array<int, 128> ids{};
  int found = 0;
  if (cublasLtMatmulAlgoGetIds(handle_, problem_.compute_type(), CUDA_R_32F, a, b, out, out,
                               static_cast<int>(ids.size()), ids.data(), &found) != CUBLAS_STATUS_SUCCESS)
    return {};
  std::vector<Algorithm> list;
  for (int i = 0; i < found; ++i) {
    Algorithm algorithm{};
    if (cublasLtMatmulAlgoInit(handle_, problem_.compute_type(), CUDA_R_32F, a, b, out, out, ids[static_cast<size_t>(i)],
                               &algorithm) != CUBLAS_STATUS_SUCCESS)
      continue;
    // Without tensor cores a large product is too slow even to try.
    const auto flags = capability<uint64_t>(algorithm, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS);
    if (flags & CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK) list.push_back(algorithm);
  }
  return list;
}

std::vector<GemmCandidate> GemmSearch::related() {
  std::vector<GemmCandidate> list;
  const auto request = [&](const GemmProblem& other, int count) {
    request_algorithms(describe_gemm(other, nullptr), other, count, nullptr, list);
  };
  GemmProblem plain = problem_;
  plain.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  plain.accumulate = plain.in_place = false;
  plain.lda = plain.ldb = plain.ldc = plain.ldd = 0;  // other sizes might contradict them
  request(plain, 16);
  // The heuristic's choice changes abruptly with the size; its choice for a nearby size is often better here too.
  const auto near = [](int64_t size) {
    return std::array<int64_t, 4>{std::max<int64_t>(256, size / 256 * 256), (size + 255) / 256 * 256, 2 * size,
                                  std::max<int64_t>(64, size / 2 / 8 * 8)};
  };
  for (int64_t m : near(problem_.m)) {
    GemmProblem other = plain;
    other.m = m;
    request(other, 4);
  }
  for (int64_t n : near(problem_.n)) {
    GemmProblem other = plain;
    other.n = n;
    request(other, 4);
  }
  for (const Algorithm& family : families()) request_algorithms(plan_, problem_, 2, &family, list);
  return list;
}

std::vector<GemmCandidate> GemmSearch::among(const std::vector<Algorithm>& algorithms) {
  std::vector<GemmCandidate> list;
  for (const Algorithm& algorithm : algorithms) take(algorithm, list);
  return list;
}

void GemmSearch::vary_tiles(const Algorithm& base, size_t limit, std::vector<GemmCandidate>& to) {
  struct Ranked {
    GemmCandidate candidate;
    double cost;
  };
  // Full waves are best; tiles below about 128 x 192 move more data through shared memory per product.
  int device = 0, multiprocessors = 1;
  BLIPFT_CUDA_CHECK(cudaGetDevice(&device));
  BLIPFT_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  const double large_waves =
      static_cast<double>(problem_.m * problem_.n) / (128.0 * 192.0 * static_cast<double>(multiprocessors));
  std::vector<Ranked> ranked;
  for (uint32_t tile : capability_list(base, CUBLASLT_ALGO_CAP_TILE_IDS)) {
    const auto changed = with(base, CUBLASLT_ALGO_CONFIG_TILE_ID, tile);
    std::vector<GemmCandidate> one;
    double waves = 0;
    if (!changed || !take(*changed, one, &waves)) continue;
    const double cost = waves > 0 ? std::ceil(waves) / waves * std::sqrt(std::max(1.0, waves / large_waves)) : 1;
    ranked.push_back({one.front(), cost});
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) { return a.cost < b.cost; });
  for (const Ranked& r : ranked) {
    if (to.size() < limit) to.push_back(r.candidate);
    else seen_.erase(words_of(r.candidate.algorithm));  // may be proposed again
  }
}

std::vector<GemmCandidate> GemmSearch::variations(const Algorithm& base, size_t limit) {
  std::vector<GemmCandidate> list;
  const size_t settings_limit = limit * 6 / 10;  // the rest is for tiles
  const auto vary = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
    if (list.size() >= settings_limit) return;
    if (const auto changed = with(base, attribute, value)) take(*changed, list);
  };
  if (capability<int32_t>(base, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT) != 0)
    for (uint32_t swizzle = 0; swizzle <= 1; ++swizzle) vary(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, swizzle);
  // The meaning of the options is undocumented; those that the heuristic uses are tried first.
  for (uint32_t option : options_[config<int32_t>(base, CUBLASLT_ALGO_CONFIG_ID)])
    vary(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, option);
  if (capability<int32_t>(base, CUBLASLT_ALGO_CAP_SPLITK_SUPPORT) != 0) {
    for (int32_t split : {1, 2, 3, 4, 6}) {
      if (problem_.k / split < 256 || list.size() >= settings_limit) break;
      const auto scheme = static_cast<uint32_t>(split > 1 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                          : CUBLASLT_REDUCTION_SCHEME_NONE);
      const auto parts = with(base, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, split);
      const auto changed = parts ? with(*parts, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, scheme) : parts;
      if (changed) take(*changed, list);
    }
  }
  for (uint16_t cluster = CUBLASLT_CLUSTER_SHAPE_AUTO; cluster < CUBLASLT_CLUSTER_SHAPE_END; ++cluster)
    vary(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, cluster);
  const int32_t options = std::min(capability<int32_t>(base, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX), 15);
  for (int32_t option = 0; option <= options; ++option)
    vary(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, static_cast<uint32_t>(option));
  for (uint32_t stages : capability_list(base, CUBLASLT_ALGO_CAP_STAGES_IDS))
    vary(CUBLASLT_ALGO_CONFIG_STAGES_ID, stages);
  for (uint16_t shape = CUBLASLT_MATMUL_INNER_SHAPE_UNDEFINED; shape < CUBLASLT_MATMUL_INNER_SHAPE_END; ++shape)
    vary(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, shape);
  vary_tiles(base, limit, list);
  return list;
}

}  // namespace blipft
