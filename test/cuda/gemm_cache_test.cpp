// The choice of algorithms for matrix products, and the file in which processes share it.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "blipft/device.h"
#include "support/temporary_directory.h"

#if defined(BLIPFT_CUDA)
#include "cuda/gemm/planner.h"
#endif

using namespace blipft;

namespace {

bool skipped() {
  if (cuda_device_count() > 0) return false;
  std::cout << "SKIPPED: choice of matrix product algorithms (no GPU)" << std::endl;
  return true;
}

#if defined(BLIPFT_CUDA)

using Algorithm = std::array<uint64_t, 8>;

/// A product of sizes that the table of the program does not know, and that is worth a search.
GemmProblem product(int64_t rows) {
  GemmProblem problem;
  problem.m = 1016, problem.n = rows, problem.k = 1144;
  problem.transpose_a = true;
  problem.input = problem.output = DType::bf16;
  return problem;
}

Algorithm algorithm(const GemmPlan& plan) {
  Algorithm words;
  std::copy_n(plan.algorithm.data, words.size(), words.begin());
  return words;
}

/// Returns the choices of `planner`, in the order of `rows`.
std::vector<Algorithm> choose(GemmPlanner& planner, const std::vector<int64_t>& rows) {
  std::vector<Algorithm> chosen;
  for (int64_t n : rows) {
    const GemmPlan& plan = planner.prepare(product(n), {}, nullptr);
    CHECK(plan.supported);
    CHECK(plan.microseconds > 0);
    chosen.push_back(algorithm(plan));
  }
  return chosen;
}

/// The file's lines about these tests' products; the table that comes with the program is in it too.
std::vector<std::string> lines_of(const std::string& file) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);)
    if (line.find(" m1016n") != std::string::npos) lines.push_back(line);
  return lines;
}

#endif

}  // namespace

TEST_SUITE("cuda gemm cache") {
  TEST_CASE("a product of other rows is searched among its neighbours' choices") {
    if (skipped()) return;
#if defined(BLIPFT_CUDA)
    const auto device = make_cuda_device(0);
    const testing::TemporaryDirectory folder;
    GemmPlanner planner(folder / "alone");
    const GemmSearchReport fresh = planner.search(product(576));
    choose(planner, {512, 640});
    const GemmSearchReport seeded = planner.search(product(576));
    CHECK(fresh.candidates > 16);
    CHECK(seeded.candidates >= 1);
    CHECK(seeded.candidates <= 3);  // two neighbours' choices and the heuristic's first
    CHECK(planner.search(product(2048)).candidates > 16);  // too far from both
#endif
  }

  TEST_CASE("planners that share a file choose alike, whoever searches first") {
    if (skipped()) return;
#if defined(BLIPFT_CUDA)
    const auto device = make_cuda_device(0);
    const testing::TemporaryDirectory folder;
    const std::string file = folder / "cache";
    const std::vector<int64_t> rows = {256, 1024, 384, 768, 320};
    const std::vector<int64_t> reversed(rows.rbegin(), rows.rend());
    std::vector<Algorithm> first, second;
    const auto caught = [](auto body) {      // an exception that leaves a thread would end all tests
      try {
        body();
      } catch (const std::exception& error) {
        FAIL_CHECK(error.what());
      }
    };
    // As in a captured step: its products are met first, and chosen for together.
    GemmPlanner captured(file, GemmEffort::quick);
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    for (int64_t n : reversed) captured.prepare(product(n), {}, stream);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    std::thread one(caught, [&] {
      device->bind_thread();
      GemmPlanner planner(file, GemmEffort::quick);
      first = choose(planner, rows);
    });
    std::thread two(caught, [&] {
      device->bind_thread();
      CHECK(captured.tune_deferred_products());
      second = choose(captured, rows);
    });
    one.join();
    two.join();
    CHECK(first == second);
    const std::vector<std::string> lines = lines_of(file);
    CHECK(lines.size() == rows.size());
    GemmPlanner later(file);
    for (int64_t n : rows) CHECK(later.knows(product(n)));
    CHECK(choose(later, rows) == first);
    CHECK(lines_of(file) == lines);
#endif
  }

  TEST_CASE("a line that does not work is replaced, a file that is none is written anew") {
    if (skipped()) return;
#if defined(BLIPFT_CUDA)
    const auto device = make_cuda_device(0);
    const testing::TemporaryDirectory folder;
    const std::string file = folder / "cache";
    const std::vector<int64_t> rows = {256, 1024};
    {
      GemmPlanner planner(file, GemmEffort::quick);
      choose(planner, rows);
    }
    const std::vector<std::string> lines = lines_of(file);
    REQUIRE(lines.size() == 2);
    const std::string nonsense = "ffffffffffffffff";
    std::string spoilt = lines[1].substr(0, lines[1].rfind(' ') + 1);
    for (int i = 0; i < 8; ++i) spoilt += (i ? "." : "") + nonsense;
    std::ofstream(file) << "blipft-gemm-cache 2\n" << lines[0] << "\n" << spoilt << "\n";
    std::vector<Algorithm> chosen;
    {
      GemmPlanner planner(file, GemmEffort::quick);
      chosen = choose(planner, rows);
    }
    const std::vector<std::string> mended = lines_of(file);
    REQUIRE(mended.size() == 2);
    CHECK(mended[0] == lines[0]);
    CHECK(mended[1].find(nonsense) == std::string::npos);
    GemmPlanner later(file);
    CHECK(choose(later, rows) == chosen);

    std::ofstream(file) << "something else\n";
    GemmPlanner anew(file, GemmEffort::quick);
    choose(anew, {256});
    CHECK(lines_of(file).size() == 1);
#endif
  }
}
