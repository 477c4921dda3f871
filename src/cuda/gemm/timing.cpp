// Timing of GEMM candidates. Launches rotate through sets of buffers because a layer never finds its weights in the L2
// cache. Candidates are timed in turn because clocks and power drift.
#include "cuda/gemm/timing.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "cuda/device/graph_rewrite.h"
#include "cuda/gemm/search.h"
#include "cuda/kernels.h"

namespace blipft {
namespace {

constexpr int64_t kRotateBytes = int64_t{130} << 20;  // more than twice the L2 cache
constexpr int64_t kMaxSets = 24;
constexpr int kQuickPasses = 2;
constexpr double kQuickMargin = 1.15;  // a candidate that is slower than this times the best after one pass is not
                                       // timed again

struct GraphOwner {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  GraphOwner() = default;
  GraphOwner(GraphOwner&& other) noexcept
      : graph(std::exchange(other.graph, nullptr)), executable(std::exchange(other.executable, nullptr)) {}
  ~GraphOwner() {
    if (executable) (void)cudaGraphExecDestroy(executable);
    if (graph) (void)cudaGraphDestroy(graph);
  }
};

/// Pairs of events that measure intervals of one stream.
class Stopwatches {
 public:
  explicit Stopwatches(size_t count) : events_(2 * count, nullptr) {
    for (cudaEvent_t& event : events_) BLIPFT_CUDA_CHECK(cudaEventCreate(&event));
  }
  ~Stopwatches() {
    for (cudaEvent_t event : events_)
      if (event) (void)cudaEventDestroy(event);
  }
  Stopwatches(const Stopwatches&) = delete;
  Stopwatches& operator=(const Stopwatches&) = delete;
  void start(size_t i, cudaStream_t stream) { BLIPFT_CUDA_CHECK(cudaEventRecord(events_[2 * i], stream)); }
  void stop(size_t i, cudaStream_t stream) { BLIPFT_CUDA_CHECK(cudaEventRecord(events_[2 * i + 1], stream)); }
  /// Requires a synchronized stream.
  double microseconds(size_t i) const {
    float milliseconds = 0;
    BLIPFT_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, events_[2 * i], events_[2 * i + 1]));
    return 1e3 * static_cast<double>(milliseconds);
  }

 private:
  std::vector<cudaEvent_t> events_;
};

/// Returns a rough estimate of one launch in microseconds.
double guess(const GemmProblem& problem) {
  const double flops_of_a_microsecond =
      is_fp8(problem.input) ? 1200e6 : problem.input == DType::bf16 ? 600e6 : problem.tf32 ? 300e6 : 40e6;
  return std::max(4.0, problem.flops() / flops_of_a_microsecond);
}

int64_t padded(int64_t elements, DType dtype) { return round_up(elements * dtype_size(dtype), 256) + 256; }

int64_t elements_of_a(const GemmProblem& p) {
  return p.transpose_a ? stored_elements(p.k, p.m, p.lda) : stored_elements(p.m, p.k, p.lda);
}
int64_t elements_of_b(const GemmProblem& p) {
  return p.transpose_b ? stored_elements(p.n, p.k, p.ldb) : stored_elements(p.k, p.n, p.ldb);
}
int64_t elements_of_d(const GemmProblem& p) { return stored_elements(p.m, p.n, p.ldd); }

/// Byte sizes of the parts of one buffer set.
struct SetBytes {
  explicit SetBytes(const GemmProblem& p)
      : a(padded(elements_of_a(p), p.input)), b(padded(elements_of_b(p), p.type_of_b())),
        d(padded(elements_of_d(p), p.output)),
        c(p.accumulate && !p.in_place ? padded(stored_elements(p.m, p.n, p.ldc), p.output) : 0),
        vector(has_epilogue_vector(p) ? padded(std::max(p.m, p.n), DType::f32) : 0),
        scale(is_fp8(p.input) ? padded(1, DType::f32) : 0) {}
  int64_t a, b, d, c, vector, scale;
  int64_t total() const { return a + b + d + c + vector + scale; }
};

/// Places one set at `next`, with exactly the alignments of the problem, and fills it.
GemmBuffers make_set(const GemmProblem& problem, const SetBytes& bytes, char* next) {
  const auto take = [&](int64_t size, int32_t align) {
    char* place = next + (align < 256 ? align : 0);
    next += size;
    return place;
  };
  void* a = take(bytes.a, problem.align_a);
  void* b = take(bytes.b, problem.align_b);
  GemmBuffers set;
  set.a = a, set.b = b;
  set.d = take(bytes.d, problem.align_d);
  set.c = bytes.c > 0 ? take(bytes.c, problem.align_c) : set.d;
  // Random values, because zeros run faster than real data.
  const LaunchContext context;
  if (is_fp8(problem.input)) {
    launch_fill_fp8({a, problem.input, {elements_of_a(problem)}}, 1, context);
    launch_fill_fp8({b, problem.input_b, {elements_of_b(problem)}}, 2, context);
    void* const scale = take(bytes.scale, 256);
    launch_fill_normal({scale, DType::f32, {1}}, 1, 4, 0, 1, 0, context);
    set.scale_a = set.scale_b = scale;
  } else {
    launch_fill_normal({a, problem.input, {elements_of_a(problem)}}, 1, 1, 0, 0, 1, context);
    launch_fill_normal({b, problem.input, {elements_of_b(problem)}}, 1, 2, 0, 0, 0.02f, context);
  }
  if (bytes.vector > 0) {
    // A bias has the alignment of its position among its unit's parameters.
    set.epilogue_vector = take(bytes.vector, std::min(problem.align_d, 16));
    const Tensor vector{set.epilogue_vector, problem.output, {std::max(problem.m, problem.n)}};
    launch_fill_normal(vector, 1, 3, 0, 0, 1, context);
  }
  return set;
}

float number(const char* from, DType dtype) {
  uint32_t bits = 0;
  if (dtype == DType::bf16) {
    uint16_t half;
    std::memcpy(&half, from, sizeof half);
    bits = static_cast<uint32_t>(half) << 16;
  } else {
    std::memcpy(&bits, from, sizeof bits);
  }
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Copies parts of a result: the first, the last, and evenly spaced parts between.
std::vector<char> sample(const void* from, int64_t bytes) {
  constexpr int64_t kParts = 48, kPart = 8192;
  const int64_t parts = bytes <= kParts * kPart ? 1 : kParts, part = parts == 1 ? bytes : kPart;
  std::vector<char> out(static_cast<size_t>(parts * part));
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t offset = parts == 1 ? 0 : (bytes - part) / (parts - 1) * i / 16 * 16;
    const int64_t place = i + 1 == parts ? bytes - part : offset;
    BLIPFT_CUDA_CHECK(cudaMemcpy(out.data() + i * part, static_cast<const char*>(from) + place,
                                 static_cast<size_t>(part), cudaMemcpyDeviceToHost));
  }
  return out;
}

/// True if the results are equal except for the rounding of the output and the order of f32 sums.
bool close_to(const std::vector<char>& got, const std::vector<char>& wanted, const GemmProblem& problem) {
  const DType dtype = problem.output;
  // Both are rounded to bf16 (at most 2^-9 each); f32 sums of k products differ by far less than 1e-3 of the rms. With
  // TF32, one algorithm may use full f32 factors: rounding factors by 2^-12 on average changes results by 3e-4,
  // sometimes more.
  const double share = problem.tf32 ? 4e-3 : 1e-3;
  const auto size = static_cast<size_t>(dtype_size(dtype));
  double squares = 0;
  for (size_t i = 0; i + size <= wanted.size(); i += size) {
    const double w = static_cast<double>(number(wanted.data() + i, dtype));
    squares += w * w;
  }
  const double rms = std::sqrt(squares / std::max(1.0, static_cast<double>(wanted.size() / size)));
  for (size_t i = 0; i + size <= wanted.size(); i += size) {
    const double w = static_cast<double>(number(wanted.data() + i, dtype));
    const double difference = std::abs(static_cast<double>(number(got.data() + i, dtype)) - w);
    if (!(difference <= std::abs(w) / 128 + share * rms)) return false;
  }
  return true;
}

}  // namespace

GemmPlanner::Timing::Timing() { BLIPFT_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }

GemmPlanner::Timing::~Timing() { (void)cudaStreamDestroy(stream); }

std::optional<GemmPlanner::TimingBuffers> GemmPlanner::TimingBuffers::allocate(const GemmProblem& problem) {
  const SetBytes bytes(problem);
  BLIPFT_CUDA_CHECK(cudaDeviceSynchronize());  // no other kernels run during the timing
  void* raw = nullptr;
  cudaError_t status = cudaErrorMemoryAllocation;
  int64_t count = std::clamp<int64_t>(ceil_div(kRotateBytes, bytes.total()), 1, kMaxSets);
  for (;; count = 1) {
    status = cudaMalloc(&raw, static_cast<size_t>(kGemmWorkspaceBytes + count * bytes.total()));
    if (status == cudaSuccess || count == 1) break;
    (void)cudaGetLastError();
  }
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    std::fprintf(stderr,
                 "warning: %lld bytes to time the matrix product %s are not free (%s): taking cuBLASLt's first "
                 "choice\n",
                 static_cast<long long>(kGemmWorkspaceBytes + bytes.total()), problem.key().c_str(),
                 cudaGetErrorString(status));
    return std::nullopt;
  }
  TimingBuffers buffers;
  buffers.memory = TimingMemory(raw);
  char* memory = buffers.memory.get();
  BLIPFT_CUDA_CHECK(cudaMemset(raw, 0, static_cast<size_t>(kGemmWorkspaceBytes + count * bytes.total())));
  buffers.workspace = memory;
  for (int64_t i = 0; i < count; ++i)
    buffers.sets.push_back(make_set(problem, bytes, memory + kGemmWorkspaceBytes + i * bytes.total()));
  BLIPFT_CUDA_CHECK(cudaDeviceSynchronize());
  return buffers;
}

void GemmPlanner::time_quickly(std::vector<GemmCandidate>& candidates, GemmPlan& plan, const GemmProblem& problem,
                               const TimingBuffers& buffers, const Timing& timing, double& best) {
  const cudaStream_t stream = timing.stream;
  size_t next = 0;
  const auto start = [&](const GemmCandidate& candidate, int times) {
    plan.algorithm = candidate.algorithm;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < times && status == CUBLAS_STATUS_SUCCESS; ++i)
      status = launch(plan, problem, buffers.sets[next++ % buffers.sets.size()], buffers.workspace, stream);
    return status == CUBLAS_STATUS_SUCCESS;
  };
  // One untimed launch each loads the kernels. Some algorithms that cuBLASLt accepts do not run.
  std::erase_if(candidates, [&](const GemmCandidate& candidate) { return !start(candidate, 1); });
  (void)cudaGetLastError();
  if (candidates.empty()) return;
  const int repeats = static_cast<int>(std::clamp(40.0 / guess(problem), 1.0, 6.0));
  // The GPU leaves its idle clocks in the first tens of milliseconds; later searches follow soon.
  const double warm_up = std::exchange(warm_, true) ? 1e3 : 50e3;
  (void)start(candidates.front(), static_cast<int>(std::clamp(warm_up / guess(problem), 4.0, 2000.0)));

  Stopwatches watches(candidates.size());
  for (int pass = 0; pass < kQuickPasses; ++pass) {
    const auto timed = [&](const GemmCandidate& c) { return pass == 0 || c.microseconds <= kQuickMargin * best; };
    std::vector<size_t> started;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (!timed(candidates[i])) continue;
      watches.start(i, stream);
      (void)start(candidates[i], repeats);
      watches.stop(i, stream);
      started.push_back(i);
    }
    BLIPFT_CUDA_CHECK(cudaStreamSynchronize(stream));
    for (size_t i : started) {
      const double microseconds = watches.microseconds(i) / repeats;
      double& known = candidates[i].microseconds;
      known = known == 0 ? microseconds : std::min(known, microseconds);
      best = best == 0 ? known : std::min(best, known);
    }
  }
}

void GemmPlanner::time_rounds(std::vector<GemmCandidate>& candidates, GemmPlan& plan, const GemmProblem& problem,
                              const TimingBuffers& buffers, const Timing& timing) {
  const cudaStream_t stream = timing.stream;
  const int repeats = static_cast<int>(std::clamp(350.0 / guess(problem), 1.0, 48.0));
  const size_t rounds = guess(problem) > 300 ? 5 : 7;
  std::vector<GraphOwner> graphs(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    candidates[i].microseconds = 0;
    plan.algorithm = candidates[i].algorithm;
    BLIPFT_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    bool runs = true;
    for (int r = 0; r < repeats && runs; ++r)
      runs = launch(plan, problem, buffers.sets[static_cast<size_t>(r) % buffers.sets.size()], buffers.workspace,
                    stream) == CUBLAS_STATUS_SUCCESS;
    const cudaError_t captured = cudaStreamEndCapture(stream, &graphs[i].graph);
    if (!runs || captured != cudaSuccess) {
      (void)cudaGetLastError();
      continue;
    }
    rewrite_graph(graphs[i].graph);  // like a captured step: otherwise split-K is slowed down by its memset
    BLIPFT_CUDA_CHECK(cudaGraphInstantiate(&graphs[i].executable, graphs[i].graph, 0));
  }
  Stopwatches watches(candidates.size());
  std::vector<std::vector<double>> times(candidates.size());
  for (size_t round = 0; round <= rounds; ++round) {  // the first round is warm-up
    for (size_t place = 0; place < graphs.size(); ++place) {
      const size_t i = (place + round) % graphs.size();  // vary which candidate precedes which
      if (!graphs[i].executable) continue;
      watches.start(i, stream);
      BLIPFT_CUDA_CHECK(cudaGraphLaunch(graphs[i].executable, stream));
      watches.stop(i, stream);
    }
    BLIPFT_CUDA_CHECK(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < graphs.size() && round > 0; ++i)
      if (graphs[i].executable) times[i].push_back(watches.microseconds(i) / repeats);
  }
  for (size_t i = 0; i < graphs.size(); ++i) {
    if (times[i].empty()) continue;
    std::nth_element(times[i].begin(), times[i].begin() + static_cast<std::ptrdiff_t>(rounds / 2), times[i].end());
    candidates[i].microseconds = times[i][rounds / 2];
  }
}

bool GemmPlanner::verify(const cublasLtMatmulAlgo_t& candidate, const cublasLtMatmulAlgo_t& reference, GemmPlan& plan,
                         const GemmProblem& problem, const TimingBuffers& buffers, const Timing& timing) {
  const GemmBuffers& set = buffers.sets.front();
  const bool sums_a = problem.epilogue == CUBLASLT_EPILOGUE_BGRADA;
  const bool writes_vector = sums_a || problem.epilogue == CUBLASLT_EPILOGUE_BGRADB;
  struct Result {
    std::vector<char> product, sums;
    bool operator==(const Result&) const = default;
  };
  const auto result_of = [&](const cublasLtMatmulAlgo_t& algorithm) {
    const int64_t bytes = elements_of_d(problem) * dtype_size(problem.output);
    BLIPFT_CUDA_CHECK(cudaMemsetAsync(set.d, 0, static_cast<size_t>(bytes), timing.stream));
    plan.algorithm = algorithm;
    Result result;
    if (launch(plan, problem, set, buffers.workspace, timing.stream) != CUBLAS_STATUS_SUCCESS) return result;
    BLIPFT_CUDA_CHECK(cudaStreamSynchronize(timing.stream));
    result.product = sample(set.d, bytes);
    if (writes_vector) {
      result.sums = sample(set.epilogue_vector, (sums_a ? problem.m : problem.n) * dtype_size(problem.output));
    }
    return result;
  };
  const Result wanted = result_of(reference), got = result_of(candidate), again = result_of(candidate);
  return got == again && !got.product.empty() && got.product.size() == wanted.product.size() &&
         close_to(got.product, wanted.product, problem) && close_to(got.sums, wanted.sums, problem);
}

}  // namespace blipft
