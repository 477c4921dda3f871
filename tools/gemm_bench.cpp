// gemm_bench: measures the gain of the search for cuBLASLt algorithms on BLIP-2 opt-2.7b's matrix products.
//
//   gemm_bench [--batch N,N,...] [--text N,N,...] [--filter TEXT] [--write FILE] [--missing] [--shard I/N]
//              [--device N] [--keys] [--chunks]
//
// For each product of a training step it prints the time of the heuristic's first algorithm and of the selected one, the
// number of tried algorithms, and both settings. The sums are over a step of 64 samples in micro-batches, all trained.
//
// --write FILE adds the choices to a file such as share/gemm_algorithms.txt, whose lines it keeps (those of the same
// products are replaced); --missing leaves out products that the file or the program's table knows; --shard I/N takes
// every Nth product beginning with number I, so that N GPUs share the work: they may write to the same file.
//
// --keys only prints each product's name and its key in the file; it needs no GPU.
//
// With --chunks it also times linear layers with GELU, whole and in chunks of rows; the element-wise pass then reads a
// chunk from the L2 cache.
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
#include "cuda/gemm/planner.h"

namespace {

using namespace blipft;
using bench::Addend;
using bench::LinearLayer;

constexpr int64_t kSamples = 64;  // samples of a step
constexpr const char* kCache = "build/gemm-cache.txt";

struct Product {
  std::string name;
  GemmProblem problem;
  double times_a_step;
};

/// Every Nth product, beginning with number `first`.
struct Shard {
  size_t first = 0, of = 1;
};

struct Settings {
  std::string filter;
  bool write = false, missing = false;
  Shard shard;
};

GemmProblem problem_of(int64_t m, int64_t n, int64_t k) {
  GemmProblem problem;
  problem.m = m, problem.n = n, problem.k = k;
  problem.input = problem.output = DType::bf16;
  return problem;
}

/// Returns the products that gemm.cpp computes for one layer.
std::vector<Product> products_of(const LinearLayer& layer, int64_t micro_batches) {
  const auto count = static_cast<double>(layer.count), passes = static_cast<double>(micro_batches) * count;
  GemmProblem forward = problem_of(layer.n, layer.m, layer.k);
  forward.transpose_a = true;
  forward.accumulate = layer.residual;
  const bool relu = layer.out == Activation::relu;
  if (layer.bias) forward.epilogue = relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  GemmProblem input = problem_of(layer.k, layer.m, layer.n);
  input.accumulate = layer.addend != Addend::none;
  input.in_place = layer.addend == Addend::itself;
  GemmProblem weight = problem_of(layer.k, layer.n, layer.m);
  weight.transpose_b = true;
  GemmProblem added = weight;
  added.accumulate = added.in_place = true;
  const std::string name = layer.name;
  const double fresh = count - static_cast<double>(layer.adding);
  return {{name + " forward", forward, passes},
          {name + " dgrad", input, layer.input_gradient ? passes : 0},
          {name + " wgrad", weight, fresh},
          {name + " wgrad +=", added, passes - fresh}};
}

/// Returns each distinct product of a step once.
std::vector<Product> products_of_step(int64_t batch, int64_t text) {
  std::vector<Product> products;
  for (const LinearLayer& layer : bench::blip2_layers(batch, text)) {
    for (Product& product : products_of(layer, std::max<int64_t>(1, kSamples / batch))) {
      if (product.times_a_step == 0) continue;
      const auto same = std::find_if(products.begin(), products.end(),
                                     [&](const Product& p) { return p.problem == product.problem; });
      if (same == products.end()) products.push_back(product);
      else same->times_a_step += product.times_a_step;
    }
  }
  return products;
}

/// The products to search: all batches and texts that the settings leave.
std::vector<Product> chosen_products(const std::vector<Product>& all, const GemmPlanner& planner,
                                     const Settings& settings, size_t& number) {
  std::vector<Product> chosen;
  for (const Product& product : all) {
    if (product.name.find(settings.filter) == std::string::npos) continue;
    if (number++ % settings.shard.of != settings.shard.first) continue;  // `number` is equal in all shards
    if (!settings.missing || !planner.knows(product.problem)) chosen.push_back(product);
  }
  return chosen;
}

/// Milliseconds and operations of a step.
struct Sums {
  double first = 0, best = 0, flops = 0;
  void add(const Product& product, const GemmSearchReport& found) {
    first += product.times_a_step * found.first_microseconds / 1e3;
    best += product.times_a_step * found.best_microseconds / 1e3;
    flops += product.times_a_step * product.problem.flops();
  }
};

void print_head(int64_t batch, int64_t text) {
  std::printf("micro-batch %lld, text %lld\n%-24s %-18s %9s %9s %7s %8s %6s %7s\n", static_cast<long long>(batch),
              static_cast<long long>(text), "product", "m x n x k", "first us", "best us", "gain", "TFLOP/s", "tried",
              "search");
}

void print(const Product& product, const GemmSearchReport& found, double seconds) {
  const GemmProblem& p = product.problem;
  std::printf("%-24s %-18s %9.2f %9.2f %6.1f%% %8.1f %6lld %4.0f ms  %s%s%s\n", product.name.c_str(),
              concat(p.m, "x", p.n, "x", p.k).c_str(), found.first_microseconds, found.best_microseconds,
              100 * (found.first_microseconds / found.best_microseconds - 1), p.flops() / found.best_microseconds / 1e6,
              static_cast<long long>(found.candidates), 1e3 * seconds, found.best.c_str(),
              found.best == found.first ? "" : "  instead of  ", found.best == found.first ? "" : found.first.c_str());
}

void print_sums(const Sums& sums, const Settings& settings) {
  std::printf("a step%s: %.2f ms by the heuristic's first, %.2f ms by the chosen (%.2f ms less), %.1f TFLOP/s\n\n",
              settings.shard.of > 1 ? " (this shard's part)" : "", sums.first, sums.best, sums.first - sums.best,
              sums.flops / sums.best / 1e9);
}

void search_step(GemmPlanner& planner, int64_t batch, int64_t text, const Settings& settings, size_t& number) {
  print_head(batch, text);
  Sums sums;
  const std::vector<Product> all = products_of_step(batch, text);
  for (const Product& product : chosen_products(all, planner, settings, number)) {
    const auto start = std::chrono::steady_clock::now();
    const GemmSearchReport found = planner.search(product.problem, settings.write);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (found.best_microseconds == 0) {
      std::printf("%-24s %s: no choice\n", product.name.c_str(), product.problem.key().c_str());
      continue;
    }
    sums.add(product, found);
    print(product, found, seconds);
    std::fflush(stdout);
  }
  if (sums.best > 0) print_sums(sums, settings);
}

/// Linear layers with GELU in chunks of rows.
class ChunkBench {
 public:
  explicit ChunkBench(Device& on) : device_(on), ops_(make_cuda_ops(on, kCache)) {
    pool_ = static_cast<char*>(device_.allocate(kPool));
    slots_ = static_cast<int64_t*>(device_.allocate(2 * sizeof(int64_t)));
    ops_->set_workspace({device_.allocate(kWorkspaceBytes), DType::u8, {kWorkspaceBytes}});
  }

  /// Times fc1's forward and fc2's input gradient, whole and in chunks.
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
    set.backward.activated = set.forward.y.tensor(), set.backward.dx = tensor({rows, inner});
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

Shard parse_shard(const std::string& text) {
  Shard shard;
  char rest = 0;
  const bool good = std::sscanf(text.c_str(), "%zu/%zu%c", &shard.first, &shard.of, &rest) == 2;
  BLIPFT_USER_CHECK(good && shard.first < shard.of, "--shard: found \"", text,
                    "\", expected I/N with I from 0 to N - 1");
  return shard;
}

void run_all(int argc, char** argv) {
  const bench::Options options({{"--batch", "16,64", "N,N,..."}, {"--text", "50", "N,N,..."}, {"--filter", "", "TEXT"},
                                {"--write", "", "FILE"}, {"--missing", "", ""}, {"--shard", "0/1", "I/N"},
                                {"--device", "0", "N"}, {"--keys", "", ""}, {"--chunks", "", ""}},
                               argc, argv);
  const std::string file = options.text("--write");
  const Settings settings{options.text("--filter"), !file.empty(), options.flag("--missing"),
                          parse_shard(options.text("--shard"))};
  for (int64_t batch : options.numbers("--batch")) BLIPFT_USER_CHECK(batch > 0, "--batch: found 0, expected more");
  for (int64_t text : options.numbers("--text"))
    BLIPFT_USER_CHECK(text > 1, "--text: found ", text, ", expected 2 or more");
  if (options.flag("--keys")) {
    for (int64_t batch : options.numbers("--batch"))
      for (int64_t text : options.numbers("--text"))
        for (const Product& product : products_of_step(batch, text))
          std::printf("%-24s %s\n", product.name.c_str(), product.problem.key().c_str());
    return;
  }
  const auto device = make_cuda_device(static_cast<int>(options.number("--device")));
  device->bind_thread();
  GemmPlanner planner(file.empty() ? kCache : file);  // nothing is written without --write
  size_t number = 0;
  for (int64_t batch : options.numbers("--batch")) {
    for (int64_t text : options.numbers("--text")) search_step(planner, batch, text, settings, number);
    if (options.flag("--chunks")) ChunkBench(*device).run(batch * 257);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_main("gemm_bench", [&] { run_all(argc, argv); });
}
