// GemmPlanner: descriptors, candidates, choice (see gemm_planner.h). Timing is in gemm_timing.cpp, the file in
// gemm_cache.cpp.
#include "cuda/gemm_planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "cuda/cuda_check.h"
#include "cuda/gemm_timing.h"

namespace blipft {
namespace {

constexpr int kCandidates = 16;

cudaDataType_t cuda_type(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

/// 256, 16 or what there is below that: few distinct values, so that few distinct problems.
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

GemmPlan::Layout make_layout(DType dtype, int64_t rows, int64_t cols) {
  cublasLtMatrixLayout_t layout = nullptr;
  BLIPFT_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, cuda_type(dtype), static_cast<uint64_t>(rows),
                                                 static_cast<uint64_t>(cols), rows));
  return GemmPlan::Layout(layout);
}

using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t,
    GemmPlan::Destroy<cublasLtMatmulPreferenceDestroy>>;

Preference make_preference(const GemmProblem& problem) {
  cublasLtMatmulPreference_t raw = nullptr;
  BLIPFT_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&raw));
  Preference preference(raw);
  const auto set_preference = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    BLIPFT_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
  };
  set_preference(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kGemmWorkspaceBytes));
  // Split-K sums its parts in f32 workspace, in a fixed order; sums in the output's own type would round in between.
  set_preference(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(problem.align_a));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(problem.align_b));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(problem.align_c));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(problem.align_d));
  return preference;
}

}  // namespace

std::string GemmProblem::key() const {
  return concat("m", m, "n", n, "k", k, transpose_a ? "t" : "n", transpose_b ? "t" : "n", ":", dtype_name(input), "-",
                dtype_name(output), ":e", epilogue, accumulate ? (in_place ? ":acc" : ":add") : "", ":a", align_a, ".",
                align_b, ".", align_c, ".", align_d);
}

void set_alignments(GemmProblem& problem, const GemmBuffers& buffers) {
  problem.align_a = alignment(buffers.a);
  problem.align_b = alignment(buffers.b);
  // cuBLASLt has no alignment of its own for the epilogue's vector; kernels treat it like D. Vectors that are rarely
  // 256-byte aligned must not spoil D's: 16 bytes are what their accesses need.
  problem.align_d = alignment(buffers.d);
  const int32_t vector = buffers.epilogue_vector ? alignment(buffers.epilogue_vector) : 256;
  if (vector < 16) problem.align_d = std::min(problem.align_d, vector);
  problem.in_place = problem.accumulate && buffers.c == buffers.d;
  problem.align_c = problem.accumulate ? std::min(alignment(buffers.c), problem.align_d) : problem.align_d;
}

GemmPlanner::GemmPlanner(const std::string& cache_path) : cache_path_(cache_path) {
  BLIPFT_CUBLAS_CHECK(cublasLtCreate(&handle_));
  int device = 0;
  BLIPFT_CUDA_CHECK(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  BLIPFT_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  std::string gpu = properties.name;
  for (char& c : gpu)
    if (c == ' ') c = '_';
  cache_prefix_ = concat(gpu, " cublaslt-", cublasLtGetVersion(), " ");
  if (!cache_path_.empty()) cache_ = read_cache();
}

GemmPlanner::~GemmPlanner() { (void)cublasLtDestroy(handle_); }

GemmPlan& GemmPlanner::prepare(const GemmProblem& problem, const GemmBuffers& buffers, cudaStream_t stream) {
  if (const auto known = plans_.find(problem); known != plans_.end()) return known->second;
  GemmPlan plan = describe(problem, buffers.epilogue_vector);
  if (!take_cached(problem, plan)) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    BLIPFT_CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
    choose(problem, plan, !cache_path_.empty() && capture == cudaStreamCaptureStatusNone);
  }
  return plans_.emplace(problem, std::move(plan)).first->second;
}

void GemmPlanner::run(GemmPlan& plan, const GemmProblem& problem, const GemmBuffers& buffers, void* workspace,
                      cudaStream_t stream) {
  if (buffers.epilogue_vector) set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, buffers.epilogue_vector);
  const float alpha = 1, beta = problem.accumulate ? 1 : 0;
  const void* c = problem.accumulate ? buffers.c : buffers.d;
  const cublasStatus_t status =
      cublasLtMatmul(handle_, plan.description.get(), &alpha, buffers.a, plan.a.get(), buffers.b, plan.b.get(),
          &beta, c,
                     plan.d.get(), buffers.d, plan.d.get(), &plan.algorithm, workspace, kGemmWorkspaceBytes, stream);
  check_cublas(status, concat("cublasLtMatmul of ", problem.key()).c_str(), std::source_location::current());
}

GemmPlan GemmPlanner::describe(const GemmProblem& problem, void* epilogue_vector) const {
  GemmPlan plan;
  cublasLtMatmulDesc_t description = nullptr;
  // Full f32 products for f32 tensors (no tf32), f32 accumulation for bf16.
  BLIPFT_CUBLAS_CHECK(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  plan.description.reset(description);
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, problem.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSB, problem.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (problem.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
    set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<cublasLtEpilogue_t>(problem.epilogue));
    if (epilogue_vector) {
      set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, epilogue_vector);
      set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(cuda_type(problem.output)));
    }
  }
  plan.a = problem.transpose_a ? make_layout(problem.input, problem.k, problem.m)
                               : make_layout(problem.input, problem.m, problem.k);
  plan.b = problem.transpose_b ? make_layout(problem.input, problem.n, problem.k)
                               : make_layout(problem.input, problem.k, problem.n);
  plan.d = make_layout(problem.output, problem.m, problem.n);
  return plan;
}

bool GemmPlanner::take_cached(const GemmProblem& problem, GemmPlan& plan) const {
  const auto cached = cache_.find(cache_prefix_ + problem.key());
  if (cached == cache_.end()) return false;
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle_, plan.description.get(), plan.a.get(), plan.b.get(), plan.d.get(), plan.d.get(),
                              &cached->second.algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > static_cast<size_t>(kGemmWorkspaceBytes)) return false;
  plan.algorithm = cached->second.algorithm;
  plan.microseconds = cached->second.microseconds;
  plan.supported = true;
  return true;
}

void GemmPlanner::choose(const GemmProblem& problem, GemmPlan& plan, bool timed) {
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates{};
  int found = 0;
  const Preference preference = make_preference(problem);
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, plan.description.get(), plan.a.get(), plan.b.get(), plan.d.get(), plan.d.get(), preference.get(),
      timed ? kCandidates : 1, candidates.data(), &found);
  if (status != CUBLAS_STATUS_SUCCESS || found == 0) return;  // an unsupported combination, the caller's other way
  plan.algorithm = candidates[0].algo;
  plan.supported = true;
  if (!timed) return;

  const auto buffers = TimingBuffers::allocate(problem);
  if (!buffers) return;  // no memory to spare: the heuristic's first candidate, and nothing for the file
  const Timing timing;
  double best = 0;
  cublasLtMatmulAlgo_t chosen = plan.algorithm;
  for (int i = 0; i < found; ++i) {
    plan.algorithm = candidates[static_cast<size_t>(i)].algo;
    const double microseconds = time_candidate(plan, problem, *buffers, timing, best);
    // Less than 1 % is noise: the heuristic's order decides then.
    if (microseconds > 0 && (best == 0 || microseconds < 0.99 * best)) {
      best = microseconds;
      chosen = plan.algorithm;
    }
  }
  plan.algorithm = chosen;
  // Rounded to what the file holds, so that decisions taken on it are the same in the next run.
  plan.microseconds = best = std::round(best * 100) / 100;
  if (best == 0) return;
  add_to_cache(cache_prefix_ + problem.key(), {best, chosen});
}

}  // namespace blipft
