// gemm_bench: what the search for cuBLASLt algorithms gains on BLIP-2 opt-2.7b's matrix products.
//
//   gemm_bench [--batch N,N,...] [--filter TEXT] [--device N] [--chunks]
//
// For each product of a training step: the time of the heuristic's first algorithm, of the one chosen, how many were
// tried, and both settings. The sums are over a step of four micro-batches, everything trained. With --chunks it
// also times linear layers with GELU whole and in chunks of rows, where the element-wise pass finds a chunk in the L2
// cache.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "bench_options.h"
#include "blip2_layers.h"
#include "blipft/device.h"
#include "blipft/error.h"
#include "blipft/ops.h"
#include "cuda/gemm_planner.h"

namespace {

using namespace blipft;
using bench::LinearLayer;

constexpr int kMicroBatches = 4;

struct Product {
  std::string name;
  GemmProblem problem;
  double times_a_step;
};

GemmProblem problem_of(int64_t m, int64_t n, int64_t k) {
  GemmProblem problem;
  problem.m = m, problem.n = n, problem.k = k;
  problem.input = problem.output = DType::bf16;
  return problem;
}

/// The products that gemm.cpp makes of one layer.
std::vector<Product> products_of(const LinearLayer& layer) {
  const double count = layer.count;
  GemmProblem forward = problem_of(layer.n, layer.m, layer.k);
  forward.transpose_a = true;
  forward.accumulate = layer.residual;
  if (layer.bias) forward.epilogue = layer.out == Activation::relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  GemmProblem input = problem_of(layer.k, layer.m, layer.n);
  input.accumulate = input.in_place = layer.adds_input;
  GemmProblem weight = problem_of(layer.k, layer.n, layer.m);
  weight.transpose_b = true;
  GemmProblem added = weight;
  added.accumulate = added.in_place = true;
  const std::string name = layer.name;
  return {{name + " forward", forward, kMicroBatches * count},
          {name + " dgrad", input, kMicroBatches * count},
          {name + " wgrad", weight, count},
          {name + " wgrad +=", added, (kMicroBatches - 1) * count}};
}

void search_batch(GemmPlanner& planner, int64_t batch, const std::string& filter) {
  double first = 0, best = 0, flops = 0;
  std::printf("micro-batch %lld\n%-22s %-18s %9s %9s %7s %8s %6s %7s\n", static_cast<long long>(batch), "product",
              "m x n x k", "first us", "best us", "gain", "TFLOP/s", "tried", "search");
  for (const LinearLayer& layer : bench::blip2_layers(batch)) {
    for (const Product& product : products_of(layer)) {
      if (product.name.find(filter) == std::string::npos) continue;
      const GemmProblem& p = product.problem;
      const auto start = std::chrono::steady_clock::now();
      const GemmSearchReport found = planner.search(p);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      first += product.times_a_step * found.first_microseconds;
      best += product.times_a_step * found.best_microseconds;
      flops += product.times_a_step * p.flops();
      std::printf("%-22s %-18s %9.2f %9.2f %6.1f%% %8.1f %6lld %4.0f ms  %s%s%s\n", product.name.c_str(),
                  concat(p.m, "x", p.n, "x", p.k).c_str(), found.first_microseconds, found.best_microseconds,
                  100 * (found.first_microseconds / found.best_microseconds - 1),
                  p.flops() / found.best_microseconds / 1e6, static_cast<long long>(found.candidates), 1e3 * seconds,
                  found.best.c_str(), found.best == found.first ? "" : "  instead of  ",
                  found.best == found.first ? "" : found.first.c_str());
      std::fflush(stdout);
    }
  }
  std::printf("a step of %d micro-batches of %lld: %.2f ms by the heuristic's first, %.2f ms by the chosen "
              "(%.2f ms less), %.1f TFLOP/s\n\n",
              kMicroBatches, static_cast<long long>(batch), first / 1e3, best / 1e3, (first - best) / 1e3,
              flops / best / 1e6);
}

/// Linear layers with GELU in chunks of rows.
class ChunkBench {
 public:
  explicit ChunkBench(Device& on) : device_(on), ops_(make_cuda_ops(on, "build/gemm-cache.txt")) {
    pool_ = static_cast<char*>(device_.allocate(kPool));
    slots_ = static_cast<int64_t*>(device_.allocate(2 * sizeof(int64_t)));
    ops_->set_workspace({device_.allocate(kWorkspaceBytes), DType::u8, {kWorkspaceBytes}});
  }

  /// fc1 forward and fc2's input gradient, whole and in chunks.
  void run(int64_t rows) {
    time(rows, rows);
    for (int64_t chunk : {5632, 4112, 2816, 2048, 1408})
      if (chunk < rows) time(rows, chunk);
  }

 private:
  struct Set {
    LinearForward forward;
    LinearBackwardInput backward;
  };
  Tensor tensor(const Shape& shape, float std = 1) {
    const Tensor t{pool_ + used_, DType::bf16, shape};
    used_ += (t.bytes() + 255) / 256 * 256;
    BLIPFT_CHECK(used_ <= kPool, "the pool is too small");
    ops_->fill_normal(t, 7, ++stream_id_, 0, 0, std, device_.compute_stream());
    return t;
  }
  Set make_set(int64_t rows) {
    const int64_t width = 1408, inner = 6144;
    Set set;
    set.forward.x = tensor({rows, width}), set.forward.w = tensor({inner, width}, 0.02f);
    set.forward.bias = tensor({inner}), set.forward.activation = Activation::gelu;
    set.forward.pre_activation = tensor({rows, inner}), set.forward.y = tensor({rows, inner});
    set.backward.dy = tensor({rows, width}), set.backward.w = tensor({width, inner}, 0.02f);
    set.backward.activation = Activation::gelu, set.backward.saved = set.forward.pre_activation;
    set.backward.activated = set.forward.y, set.backward.dx = tensor({rows, inner});
    return set;
  }
  void run_forward(const Set& set, int64_t first, int64_t n) {
    LinearForward args = set.forward;
    args.x = args.x.row_range(first, n), args.y = args.y.row_range(first, n);
    args.pre_activation = args.pre_activation.row_range(first, n);
    ops_->linear_forward(args, device_.compute_stream());
  }
  void run_backward(const Set& set, int64_t first, int64_t n) {
    LinearBackwardInput args = set.backward;
    args.dy = args.dy.row_range(first, n), args.saved = args.saved.row_range(first, n);
    args.activated = args.activated.row_range(first, n), args.dx = args.dx.row_range(first, n);
    ops_->linear_backward_input(args, device_.compute_stream());
  }
  template <class Body>
  double measure(const Body& body) {
    const Stream stream = device_.compute_stream();
    body();
    device_.synchronize();
    const auto graph = device_.capture(stream, [&] {
      device_.timestamp(slots_, stream);
      for (int i = 0; i < 4; ++i) body();
      device_.timestamp(slots_ + 1, stream);
    });
    std::vector<double> times;
    for (int replay = 0; replay < 9; ++replay) {
      graph->launch(stream);
      int64_t host[2];
      device_.copy(host, slots_, sizeof host, stream);
      device_.synchronize(stream);
      if (replay > 1) times.push_back(static_cast<double>(host[1] - host[0]) / 1e3 / (4 * kSets));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
  void time(int64_t rows, int64_t chunk) {
    used_ = 0;
    std::vector<Set> sets;
    for (int i = 0; i < kSets; ++i) sets.push_back(make_set(rows));
    const auto all = [&](auto part) {
      return measure([&] {
        for (const Set& set : sets)
          for (int64_t first = 0; first < rows; first += chunk) part(set, first, std::min(chunk, rows - first));
      });
    };
    const double forward = all([&](const Set& s, int64_t first, int64_t n) { run_forward(s, first, n); });
    const double backward = all([&](const Set& s, int64_t first, int64_t n) { run_backward(s, first, n); });
    std::printf("gelu %lld rows in chunks of %5lld: fc1 forward %8.2f us, fc2 dgrad %8.2f us\n",
                static_cast<long long>(rows), static_cast<long long>(chunk), forward, backward);
    std::fflush(stdout);
  }

  static constexpr int64_t kPool = int64_t{4} << 30;
  static constexpr int kSets = 3;
  Device& device_;
  std::unique_ptr<Ops> ops_;
  char* pool_ = nullptr;
  int64_t* slots_ = nullptr;
  int64_t used_ = 0;
  uint32_t stream_id_ = 0;
};

void run_all(int argc, char** argv) {
  const bench::Options options({{"--batch", "16,64", "N,N,..."}, {"--filter", "", "TEXT"}, {"--device", "0", "N"},
                                {"--chunks", "", ""}}, argc, argv);
  const auto device = make_cuda_device(static_cast<int>(options.number("--device")));
  device->bind_thread();
  GemmPlanner planner("");  // search() writes no file
  for (int64_t batch : options.numbers("--batch")) {
    search_batch(planner, batch, options.text("--filter"));
    if (options.flag("--chunks")) ChunkBench(*device).run(batch * 257);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_main("gemm_bench", [&] { run_all(argc, argv); });
}
