// GemmPlanner: descriptors and choice (see planner.h). The candidates are in search.cpp, timing in timing.cpp, the file
// in cache.cpp.
#include "cuda/gemm/planner.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <thread>
#include <utility>

#include "blipft/shipped_files.h"
#include "cuda/device/cuda_check.h"
#include "cuda/gemm/search.h"
#include "cuda/gemm/timing.h"

namespace blipft {
namespace {

constexpr int kQuickCandidates = 16, kThoroughCandidates = 64;
/// Below this, launches cost more than a choice saves; plain f32 products are for comparisons, not for speed.
constexpr double kThoroughFlops = 2e8;
/// Choices for other sizes that replace a search: minimum and maximum number, and maximum ratio of the sizes.
constexpr size_t kFewestSimilar = 2, kMaxSimilar = 4;
constexpr double kSimilarFactor = 2;
/// After this time a search over many products writes its results to the file and lets other processes search.
constexpr std::chrono::seconds kTurn{2};
constexpr std::chrono::milliseconds kBetweenTurns{20};
constexpr double kGain = 0.99;  // a gain below 1 % is noise: the heuristic's first candidate is kept

/// Returns 256, 16 or less: few distinct values, so that there are few distinct problems.
int32_t alignment(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address % 256 == 0) return 256;
  for (int32_t bytes = 16; bytes > 1; bytes /= 2)
    if (address % static_cast<uintptr_t>(bytes) == 0) return bytes;
  return 1;
}

template <class T>
void set(const GemmPlan::Description& description, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  BLIPFT_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof value));
}

GemmPlan::Layout make_layout(DType dtype, int64_t rows, int64_t cols, int64_t leading) {
  cublasLtMatrixLayout_t layout = nullptr;
  BLIPFT_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, cuda_type(dtype), static_cast<uint64_t>(rows),
                                                 static_cast<uint64_t>(cols), leading > 0 ? leading : rows));
  return GemmPlan::Layout(layout);
}

/// Returns the number of variations for each round; the first round takes about 35 ms of GPU time.
std::array<size_t, 3> search_rounds(double best_microseconds) {
  const double tries = std::clamp(35e3 / (4 * std::max(best_microseconds, 20.0)), 20.0, 120.0);
  return {static_cast<size_t>(tries), static_cast<size_t>(tries * 0.7), static_cast<size_t>(tries * 0.5)};
}

}  // namespace

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::bf16: return CUDA_R_16BF;
    case DType::f8e4m3: return CUDA_R_8F_E4M3;
    case DType::f8e5m2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
  }
}

bool has_epilogue_vector(const GemmProblem& problem) {
  return problem.epilogue != CUBLASLT_EPILOGUE_DEFAULT && problem.epilogue != CUBLASLT_EPILOGUE_RELU;
}

GemmPlan::Preference make_gemm_preference(const GemmProblem& problem) {
  cublasLtMatmulPreference_t raw = nullptr;
  BLIPFT_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&raw));
  GemmPlan::Preference preference(raw);
  const auto set_preference = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    BLIPFT_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
  };
  set_preference(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kGemmWorkspaceBytes));
  // Split-K adds its parts in f32 workspace in a fixed order; sums in the output's dtype would round in between.
  set_preference(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(problem.align_a));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(problem.align_b));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(problem.align_c));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(problem.align_d));
  return preference;
}

std::string GemmProblem::key() const {
  const bool strided = lda || ldb || ldc || ldd;
  return concat("m", m, "n", n, "k", k, transpose_a ? "t" : "n", transpose_b ? "t" : "n", ":",
                tf32 ? "tf32" : dtype_name(input), is_fp8(input) ? dtype_name(input_b) : "", "-", dtype_name(output), ":e", epilogue, accumulate ? (in_place ? ":acc" : ":add") : "", ":a", align_a, ".",
                align_b, ".", align_c, ".", align_d,
                strided ? concat(":l", lda, ".", ldb, ".", ldc, ".", ldd) : std::string());
}

void set_alignments(GemmProblem& problem, const GemmBuffers& buffers) {
  problem.align_a = alignment(buffers.a);
  problem.align_b = alignment(buffers.b);
  // cuBLASLt has no separate alignment for the epilogue vector; its kernels treat it like D. Vectors are rarely
  // 256-byte aligned and must not reduce D's alignment: their accesses need only 16 bytes.
  problem.align_d = alignment(buffers.d);
  const int32_t vector = buffers.epilogue_vector ? alignment(buffers.epilogue_vector) : 256;
  if (vector < 16) problem.align_d = std::min(problem.align_d, vector);
  problem.in_place = problem.accumulate && buffers.c == buffers.d;
  problem.align_c = problem.accumulate ? std::min(alignment(buffers.c), problem.align_d) : problem.align_d;
}

GemmPlanner::GemmPlanner(const std::string& cache_path, GemmEffort effort)
    : cache_path_(cache_path), effort_(effort) {
  BLIPFT_CUBLAS_CHECK(cublasLtCreate(&handle_));
  int device = 0;
  BLIPFT_CUDA_CHECK(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  BLIPFT_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  std::string gpu = properties.name;
  for (char& c : gpu)
    if (c == ' ') c = '_';
  cache_prefix_ = concat(gpu, " cublaslt-", cublasLtGetVersion(), " ");
  if (cache_path_.empty()) return;
  cache_ = read_cache(cache_path_);
  for (const auto& [key, entry] : read_cache(shipped_file("gemm_algorithms.txt"))) cache_.emplace(key, entry);
}

GemmPlanner::~GemmPlanner() { (void)cublasLtDestroy(handle_); }

GemmPlan& GemmPlanner::prepare(const GemmProblem& problem, const GemmBuffers& buffers, cudaStream_t stream) {
  if (const auto known = plans_.find(problem); known != plans_.end()) return known->second;
  GemmPlan plan = describe_gemm(problem, buffers.epilogue_vector);
  if (!take_cached(problem, plan)) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    BLIPFT_CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
    GemmSearch first(handle_, plan, problem);
    if (const auto choice = first.heuristic(1); !choice.empty()) {  // else unsupported: the caller has an alternative
      plan.algorithm = choice.front().algorithm;
      plan.supported = true;
      if (!cache_path_.empty() && effort_ != GemmEffort::heuristic) {
        if (capture == cudaStreamCaptureStatusNone) choose({{&problem, &plan}});
        else open_.push_back(problem);
      }
    }
  }
  return plans_.emplace(problem, std::move(plan)).first->second;
}

bool GemmPlanner::tune_deferred_products() {
  const std::vector<GemmProblem> open = std::exchange(open_, {});
  std::vector<Open> plans;
  for (const GemmProblem& problem : open) plans.push_back({&problem, &plans_.at(problem)});
  if (!plans.empty()) choose(plans);
  return !plans.empty();
}

void GemmPlanner::choose(const std::vector<Open>& open) {
  // Wait before taking the lock: a process with the lock must not wait for work of others, who may wait for the lock.
  BLIPFT_CUDA_CHECK(cudaDeviceSynchronize());
  for (auto next = open.begin(); next != open.end();) {
    if (next != open.begin()) std::this_thread::sleep_for(kBetweenTurns);
    const CacheLock lock(cache_path_);
    for (const auto& [key, entry] : read_cache(cache_path_)) cache_[key] = entry;
    const auto turn = next;
    const auto end = std::chrono::steady_clock::now() + kTurn;
    std::map<std::string, CacheEntry> found;
    for (; next != open.end() && std::chrono::steady_clock::now() < end; ++next) {
      const auto& [problem, plan] = *next;
      if (take_cached(*problem, *plan)) continue;  // chosen by another process in the meantime
      search(*problem, *plan);
      if (plan->microseconds > 0) found[cache_prefix_ + problem->key()] = {plan->microseconds, plan->algorithm};
    }
    if (found.empty()) continue;
    add_to_cache(found);
    // Without a lock another process may have been faster: use the choices that are in the file.
    for (auto chosen = turn; chosen != next; ++chosen) take_cached(*chosen->problem, *chosen->plan);
  }
}

void GemmPlanner::run(GemmPlan& plan, const GemmProblem& problem, const GemmBuffers& buffers, void* workspace,
                      cudaStream_t stream) {
  const cublasStatus_t status = launch(plan, problem, buffers, workspace, stream);
  if (status != CUBLAS_STATUS_SUCCESS)
    check_cublas(status, concat("cublasLtMatmul of ", problem.key()).c_str(), std::source_location::current());
}

cublasStatus_t GemmPlanner::launch(GemmPlan& plan, const GemmProblem& problem, const GemmBuffers& buffers,
                                   void* workspace, cudaStream_t stream) {
  if (buffers.epilogue_vector) set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, buffers.epilogue_vector);
  if (is_fp8(problem.input)) {
    set(plan.description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, buffers.scale_a);
    set(plan.description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, buffers.scale_b);
  }
  const float alpha = buffers.alpha, beta = problem.accumulate ? 1 : 0;
  const void* c = problem.accumulate ? buffers.c : buffers.d;
  return cublasLtMatmul(handle_, plan.description.get(), &alpha, buffers.a, plan.a.get(), buffers.b, plan.b.get(),
                        &beta, c, plan.c(), buffers.d, plan.d.get(), &plan.algorithm, workspace,
                        kGemmWorkspaceBytes, stream);
}

GemmPlan describe_gemm(const GemmProblem& problem, void* epilogue_vector) {
  GemmPlan plan;
  cublasLtMatmulDesc_t description = nullptr;
  BLIPFT_CUBLAS_CHECK(cublasLtMatmulDescCreate(&description, problem.compute_type(), CUDA_R_32F));
  plan.description.reset(description);
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, problem.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSB, problem.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  // The pointers must be set because only algorithms that support scaling are valid; launches set the real pointers.
  if (is_fp8(problem.input)) {
    const void* const some = reinterpret_cast<const void*>(uintptr_t{16});
    set(plan.description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, some);
    set(plan.description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, some);
  }
  if (problem.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
    set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<cublasLtEpilogue_t>(problem.epilogue));
    if (epilogue_vector) {
      set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, epilogue_vector);
      set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(cuda_type(problem.output)));
    }
  }
  plan.a = problem.transpose_a ? make_layout(problem.input, problem.k, problem.m, problem.lda)
                               : make_layout(problem.input, problem.m, problem.k, problem.lda);
  plan.b = problem.transpose_b ? make_layout(problem.type_of_b(), problem.n, problem.k, problem.ldb)
                               : make_layout(problem.type_of_b(), problem.k, problem.n, problem.ldb);
  plan.d = make_layout(problem.output, problem.m, problem.n, problem.ldd);
  // Without C the library gets D as C.
  if (problem.accumulate && problem.ldc != problem.ldd)
    plan.other_c = make_layout(problem.output, problem.m, problem.n, problem.ldc);
  return plan;
}

bool GemmPlanner::take_cached(const GemmProblem& problem, GemmPlan& plan) const {
  const auto cached = cache_.find(cache_prefix_ + problem.key());
  if (cached == cache_.end()) return false;
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle_, plan.description.get(), plan.a.get(), plan.b.get(), plan.c(), plan.d.get(),
                              &cached->second.algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > static_cast<size_t>(kGemmWorkspaceBytes)) return false;
  plan.algorithm = cached->second.algorithm;
  plan.microseconds = cached->second.microseconds;
  plan.supported = true;
  return true;
}

bool GemmPlanner::knows(const GemmProblem& problem) const { return cache_.count(cache_prefix_ + problem.key()) > 0; }

GemmSearchReport GemmPlanner::search(const GemmProblem& problem, bool keep) {
  // Only its alignment matters: the library does not access the pointer before the launch.
  void* vector = has_epilogue_vector(problem) ? reinterpret_cast<void*>(uintptr_t{16}) : nullptr;
  GemmPlan plan = describe_gemm(problem, vector);
  const GemmSearchReport report = search(problem, plan);
  if (keep && plan.microseconds > 0) {
    const CacheLock lock(cache_path_);
    add_to_cache({{cache_prefix_ + problem.key(), {plan.microseconds, plan.algorithm}}});
  }
  return report;
}

std::vector<cublasLtMatmulAlgo_t> GemmPlanner::chosen_for_similar(const GemmProblem& problem) const {
  std::multimap<double, const GemmPlan*> by_factor;
  for (const auto& [known, plan] : plans_) {
    if (plan.microseconds == 0) continue;
    GemmProblem other = known;
    other.m = problem.m, other.n = problem.n, other.k = problem.k;
    const int different = (known.m != problem.m) + (known.n != problem.n) + (known.k != problem.k);
    const double factor = known.flops() > problem.flops() ? known.flops() / problem.flops() : problem.flops() / known.flops();
    if (different == 1 && other == problem && factor <= kSimilarFactor) by_factor.emplace(factor, &plan);
  }
  std::vector<cublasLtMatmulAlgo_t> nearest;
  for (const auto& [factor, plan] : by_factor)
    if (nearest.size() < kMaxSimilar) nearest.push_back(plan->algorithm);
  return nearest;
}

GemmSearchReport GemmPlanner::search(const GemmProblem& problem, GemmPlan& plan) {
  GemmSearchReport report;
  // The library's check of a variation does not consider addresses: vary only if they suit all algorithms.
  const bool aligned = std::min({problem.align_a, problem.align_b, problem.align_c, problem.align_d}) >= 16;
  const bool thorough = effort_ == GemmEffort::thorough && (problem.input == DType::bf16 || is_fp8(problem.input) || problem.tf32) && aligned &&
                        problem.flops() >= kThoroughFlops;
  GemmSearch source(handle_, plan, problem);
  const std::vector<cublasLtMatmulAlgo_t> similar = chosen_for_similar(problem);
  const bool seeded =
      similar.size() >= kFewestSimilar && !GemmSearch(handle_, plan, problem).among(similar).empty();  // some work here
  std::vector<GemmCandidate> pool = source.heuristic(seeded ? 1 : thorough ? kThoroughCandidates : kQuickCandidates);
  if (pool.empty()) return report;
  const cublasLtMatmulAlgo_t first = pool.front().algorithm;
  plan.algorithm = first;
  plan.supported = true;
  const auto buffers = TimingBuffers::allocate(problem);
  if (!buffers) return report;  // too little memory: keep the heuristic's first candidate and write nothing to the file
  const Timing timing;

  double best = 0;
  const auto time_and_sort = [&](std::vector<GemmCandidate> fresh) {
    time_quickly(fresh, plan, problem, *buffers, timing, best);
    report.candidates += static_cast<int64_t>(fresh.size());
    pool.insert(pool.end(), fresh.begin(), fresh.end());
    std::stable_sort(pool.begin(), pool.end(),
                     [](const GemmCandidate& a, const GemmCandidate& b) { return a.microseconds < b.microseconds; });
  };
  if (seeded) {
    for (const GemmCandidate& candidate : source.among(similar)) pool.push_back(candidate);
  }
  time_and_sort(std::exchange(pool, {}));
  if (thorough && !seeded) {
    time_and_sort(source.related());
    // Each round varies the fastest candidates of all earlier rounds.
    for (const size_t tries : search_rounds(best)) {
      std::vector<GemmCandidate> fresh;
      const size_t bases = std::min<size_t>(pool.size(), 3);
      for (size_t i = 0; i < bases && fresh.size() < tries; ++i) {
        const auto more = source.variations(pool[i].algorithm, i == 0 ? tries * 2 / 3 : tries - fresh.size());
        fresh.insert(fresh.end(), more.begin(), more.end());
      }
      time_and_sort(std::move(fresh));
    }
  }
  decide(std::move(pool), first, plan, problem, *buffers, timing, report);
  return report;
}

void GemmPlanner::decide(std::vector<GemmCandidate> pool, const cublasLtMatmulAlgo_t& first, GemmPlan& plan,
                         const GemmProblem& problem, const TimingBuffers& buffers, const Timing& timing,
                         GemmSearchReport& report) {
  const auto is_first = [&](const GemmCandidate& c) {
    return std::equal(c.algorithm.data, c.algorithm.data + 8, first.data);
  };
  plan.algorithm = first;
  const size_t finalists = pool.empty() || pool.front().microseconds > 300 ? 5 : 8;
  std::erase_if(pool, is_first);
  if (pool.size() > finalists) pool.resize(finalists);
  pool.insert(pool.begin(), {first, 0});
  time_rounds(pool, plan, problem, buffers, timing);
  report.first_microseconds = pool.front().microseconds;
  report.first = algorithm_text(first);
  std::erase_if(pool, [](const GemmCandidate& c) { return c.microseconds == 0; });
  std::stable_sort(pool.begin(), pool.end(),
                   [](const GemmCandidate& a, const GemmCandidate& b) { return a.microseconds < b.microseconds; });
  if (pool.empty()) return;
  // If the first candidate does not run, the fastest is the reference.
  const GemmCandidate reference =
      report.first_microseconds > 0 ? GemmCandidate{first, report.first_microseconds} : pool.front();
  GemmCandidate chosen = reference;
  for (const GemmCandidate& candidate : pool) {
    if (candidate.microseconds >= kGain * reference.microseconds) break;
    if (!verify(candidate.algorithm, reference.algorithm, plan, problem, buffers, timing)) continue;
    chosen = candidate;
    break;
  }
  plan.algorithm = chosen.algorithm;
  // Rounded as in the file, so that decisions based on it are the same in the next run.
  plan.microseconds = report.best_microseconds = std::round(chosen.microseconds * 100) / 100;
  report.best = algorithm_text(plan.algorithm);
}

}  // namespace blipft
