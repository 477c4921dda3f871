// Timing of GEMM candidates: each runs a few times inside a CUDA graph, so that launch costs stay out of the number.
#include "cuda/gemm_timing.h"

#include <algorithm>
#include <cstdio>

#include "cuda/kernels.h"

namespace blipft {
namespace {

struct GraphOwner {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ~GraphOwner() {
    if (executable) (void)cudaGraphExecDestroy(executable);
    if (graph) (void)cudaGraphDestroy(graph);
  }
};

}  // namespace

GemmPlanner::Timing::Timing() {
  BLIPFT_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  BLIPFT_CUDA_CHECK(cudaEventCreate(&begin));
  BLIPFT_CUDA_CHECK(cudaEventCreate(&end));
}

GemmPlanner::Timing::~Timing() {
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  (void)cudaStreamDestroy(stream);
}

std::optional<GemmPlanner::TimingBuffers> GemmPlanner::TimingBuffers::allocate(const GemmProblem& problem) {
  const auto bytes = [](int64_t elements, DType dtype) { return round_up(elements * dtype_size(dtype), 256) + 256; };
  const int64_t a_bytes = bytes(problem.m * problem.k, problem.input);
  const int64_t b_bytes = bytes(problem.k * problem.n, problem.input);
  const int64_t d_bytes = bytes(problem.m * problem.n, problem.output);
  const int64_t vector_bytes = bytes(std::max(problem.m, problem.n), DType::f32);
  const bool own_c = problem.accumulate && !problem.in_place;
  const int64_t total = kGemmWorkspaceBytes + a_bytes + b_bytes + d_bytes + (own_c ? d_bytes : 0) + vector_bytes;

  BLIPFT_CUDA_CHECK(cudaDeviceSynchronize());  // nobody else's kernels beside the timed ones
  void* raw = nullptr;
  if (const cudaError_t status = cudaMalloc(&raw, static_cast<size_t>(total)); status != cudaSuccess) {
    (void)cudaGetLastError();
    std::fprintf(stderr,
        "warning: %lld bytes to time the matrix product %s are not free (%s): taking cuBLASLt's first choice\n",
                 static_cast<long long>(total), problem.key().c_str(), cudaGetErrorString(status));
    return std::nullopt;
  }
  TimingBuffers buffers;
  buffers.memory = TimingMemory(raw);
  char* next = buffers.memory.get();
  // An address that is aligned exactly as the problem says.
  const auto take = [&](int64_t size, int32_t align) {
    char* place = next + (align < 256 ? align : 0);
    next += size;
    return place;
  };
  buffers.workspace = take(kGemmWorkspaceBytes, 256);
  void* a = take(a_bytes, problem.align_a);
  void* b = take(b_bytes, problem.align_b);
  buffers.views.a = a;
  buffers.views.b = b;
  buffers.views.d = take(d_bytes, problem.align_d);
  buffers.views.c = own_c ? take(d_bytes, problem.align_c) : buffers.views.d;
  const bool has_vector = problem.epilogue != CUBLASLT_EPILOGUE_DEFAULT && problem.epilogue != CUBLASLT_EPILOGUE_RELU;
  buffers.views.epilogue_vector = has_vector ? take(vector_bytes, 256) : nullptr;
  BLIPFT_CUDA_CHECK(cudaMemset(raw, 0, static_cast<size_t>(total)));
  // Zeros run faster than real data.
  LaunchContext context;
  launch_fill_normal({a, problem.input, {problem.m * problem.k}}, 1, 1, 0, 0, 1, context);
  launch_fill_normal({b, problem.input, {problem.k * problem.n}}, 1, 2, 0, 0, 0.02f, context);
  BLIPFT_CUDA_CHECK(cudaDeviceSynchronize());
  return buffers;
}

double GemmPlanner::time_candidate(GemmPlan& plan, const GemmProblem& problem, const TimingBuffers& buffers,
                                   const Timing& timing, double best) {
  // About a millisecond per replay at 500 TFLOP/s (bf16) or 40 (f32).
  const double guess = problem.flops() / (problem.input == DType::bf16 ? 500e12 : 40e12);
  const int repeats = static_cast<int>(std::clamp(1e-3 / guess, 2.0, 20.0));
  GraphOwner owner;
  BLIPFT_CUDA_CHECK(cudaStreamBeginCapture(timing.stream, cudaStreamCaptureModeRelaxed));
  bool runs = true;
  try {
    for (int i = 0; i < repeats; ++i) run(plan, problem, buffers.views, buffers.workspace, timing.stream);
  } catch (const Error&) {
    runs = false;  // a candidate that cuBLASLt proposes but refuses to run
  }
  const cudaError_t captured = cudaStreamEndCapture(timing.stream, &owner.graph);
  if (!runs || captured != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  BLIPFT_CUDA_CHECK(cudaGraphInstantiate(&owner.executable, owner.graph, 0));
  double fastest = 0;
  for (int replay = 0; replay < 4; ++replay) {
    BLIPFT_CUDA_CHECK(cudaEventRecord(timing.begin, timing.stream));
    BLIPFT_CUDA_CHECK(cudaGraphLaunch(owner.executable, timing.stream));
    BLIPFT_CUDA_CHECK(cudaEventRecord(timing.end, timing.stream));
    BLIPFT_CUDA_CHECK(cudaEventSynchronize(timing.end));
    float milliseconds = 0;
    BLIPFT_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, timing.begin, timing.end));
    const double microseconds = 1e3 * static_cast<double>(milliseconds) / repeats;
    if (replay == 0) {
      if (best > 0 && microseconds > 1.5 * best) return microseconds;  // far behind even with a cold start
      continue;
    }
    if (fastest == 0 || microseconds < fastest) fastest = microseconds;
  }
  return fastest;
}

}  // namespace blipft
