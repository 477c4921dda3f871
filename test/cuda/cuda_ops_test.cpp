// Ladder step 2: the CUDA ops against the CPU ops, over one list of cases (op, dtype, shapes).
//
// The list also runs without a GPU: every case must pass the plan backend's checks and fill its outputs on the CPU.
// BLIPFT_OPS_BYTES=N: on the GPU only cases whose tensors have no more, for tools under which kernels take a hundred times
// as long (docs/testing.md). BLIPFT_OPS_PART=I/N: there every N-th case, from the I-th (0, 1, ...) on, so that N processes
// share them. BLIPFT_OPS_ONLY=TEXT: there only cases whose names match this regular expression.
#include <doctest/doctest.h>
#include <omp.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "ops/op_cases.h"

#if defined(BLIPFT_CUDA)
#include "support/restricted_ops.h"
#endif

namespace blipft::test {
namespace {

/// Bounds on the normalised error of one output against the CPU's.
/// f32: both sums are in f32 but in another order; sums of up to 10240 terms err by about 1e-6, exp and erf by an ulp.
/// bf16: both sides round each stored value (at most 2^-8 / 2 = 2e-3 of it) once or, where an intermediate is stored or
/// fed to a matrix product in bf16, twice; four of those bound the difference of the two.
/// TF32: each factor of a product is rounded by 2^-11 at most, both together by less than 1e-3. Attention's gradients
/// come from three products one after the other, and where a query sees one key they are differences of equal numbers.
/// The gradient of relative positions in bf16: the gradients of a query's scores sum up to nothing, but where delta, of
/// an output rounded to bf16, errs, they do so together: by 2e-3 of numbers of size 1. A sum over most keys of a query,
/// as that of all far offsets, is small beside them and has that error: of 900 queries 30 * 2e-3 beside numbers of size 2
/// and more.
/// One relative position for all pairs: its gradient cancels to nothing (cancelled_sum), in f32 to the rounding of up to
/// 3 * 300 * 300 terms of size 10 at most beside numbers of size 1: sqrt(270000) * 10 * 2^-24 = 3e-4.
double bound(const OpCase& op_case, const std::string& output, bool tf32) {
  if (op_case.exact) return 0;
  if (output == "drelative" && op_case.cancelled > 0)
    return op_case.dtype != DType::f32 ? op_case.cancelled : tf32 ? 3e-3 : 3e-4;
  if (output == "drelative" && op_case.dtype != DType::f32) return 4e-2;
  if (tf32 && op_case.name.starts_with("f32 attention")) return 3e-3;
  return op_case.dtype != DType::f32 ? 8e-3 : tf32 ? 1e-3 : 1e-5;
}

struct NamedOps {
  std::string name;
  std::unique_ptr<Ops> ops;
  bool tf32 = false;
};

/// This GPU's ops, and those that GPUs with less shared memory and without warpgroup products are left with.
std::vector<NamedOps> gpu_ops(Device& device) {
  std::vector<NamedOps> all;
  all.push_back({"this GPU", make_cuda_ops(device, "")});
  all.push_back({"this GPU, products in TF32", make_cuda_ops(device, "", {.tf32 = true}), true});
#if defined(BLIPFT_CUDA)
  for (const auto& [name, kib] : {std::pair{"as on compute capability 8.0", 163}, {"as on 8.6 and 8.9", 99}})
    all.push_back({name, std::make_unique<RestrictedOps>(device, kib << 10)});
#endif
  return all;
}

/// Runs the case on the GPU twice: it agrees with the CPU, and with itself to the bit. Returns the outputs compared.
int64_t compare(const OpCase& op_case, Backend& cuda, const std::vector<Result>& expected, bool tf32) {
  std::vector<Result> found, again;
  CHECK_NOTHROW(found = run_case(op_case, cuda));
  CHECK_NOTHROW(again = run_case(op_case, cuda));
  // A case that threw was reported above.
  if (found.size() != expected.size() || again.size() != found.size()) return 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(expected[i].name);
    CHECK(normalised_error(found[i], expected[i]) <= bound(op_case, expected[i].name, tf32));
    CHECK_MESSAGE(found[i].bytes == again[i].bytes, "two runs differ");
  }
  return static_cast<int64_t>(expected.size());
}

}  // namespace

TEST_SUITE("cuda_ops") {
  TEST_CASE("every case passes the plan backend; small ones fill their outputs on the CPU, alike on 1 and 2 threads [slow]") {
    const auto cpu_device = make_cpu_device(0), plan_device = make_plan_device();
    const auto cpu_ops = make_cpu_ops(), plan_ops = make_plan_ops();
    Backend cpu(*cpu_device, *cpu_ops), plan(*plan_device, *plan_ops);
    const int threads = omp_get_max_threads();
    for (const OpCase& op_case : op_cases()) {
      CAPTURE(op_case.name);
      int64_t bytes = 0;
      CHECK_NOTHROW(run_case(op_case, plan, &bytes));
      if (bytes > 400000) continue;  // the larger ones take minutes on a small machine
      omp_set_num_threads(1);
      const auto one = run_case(op_case, cpu);
#ifndef __SANITIZE_THREAD__                // which takes every parallel loop for a race: docs/testing.md
      omp_set_num_threads(2);
#endif
      const auto two = run_case(op_case, cpu);
      omp_set_num_threads(threads);
      for (size_t i = 0; i < one.size(); ++i) {
        CAPTURE(one[i].name);
        const auto numbers = numbers_of(one[i]);
        CHECK(std::none_of(numbers.begin(), numbers.end(), [](double x) { return std::isnan(x); }));
        CHECK(one[i].bytes == two[i].bytes);
      }
    }
  }

  TEST_CASE("every case on the GPU agrees with the CPU, and with itself to the bit") {
    if (cuda_device_count() == 0) {
      std::printf("SKIPPED: cuda ops (no GPU)\n");
      return;
    }
    const auto cpu_device = make_cpu_device(0), cuda_device = make_cuda_device(0);
    cuda_device->bind_thread();
    const auto cpu_ops = make_cpu_ops();
    const std::vector<NamedOps> all = gpu_ops(*cuda_device);
    Backend cpu(*cpu_device, *cpu_ops);
    std::vector<std::unique_ptr<Backend>> gpus;
    for (const NamedOps& one : all) gpus.push_back(std::make_unique<Backend>(*cuda_device, *one.ops));
    std::vector<int64_t> outputs(all.size());
    const auto plan_device = make_plan_device();
    const auto plan_ops = make_plan_ops();
    Backend plan(*plan_device, *plan_ops);
    const char* const limit = std::getenv("BLIPFT_OPS_BYTES");
    const int64_t maximum = limit ? std::atoll(limit) : std::numeric_limits<int64_t>::max();
    const char* const only = std::getenv("BLIPFT_OPS_ONLY");
    int64_t part = 0, parts = 1, number = 0;
    if (const char* const text = std::getenv("BLIPFT_OPS_PART"))
      REQUIRE((std::sscanf(text, "%" SCNd64 "/%" SCNd64, &part, &parts) == 2 && 0 <= part && part < parts));
    const int threads = omp_get_max_threads();
    for (const OpCase& op_case : op_cases()) {
      CAPTURE(op_case.name);
      if (only && !std::regex_search(op_case.name, std::regex(only))) continue;
      if (number++ % parts != part) continue;
      int64_t bytes = 0;
      run_case(op_case, plan, &bytes);
      if (bytes > maximum) continue;
      std::vector<Result> expected;
      omp_set_num_threads(std::max(threads, omp_get_num_procs()));  // large tensors, most of this test's minutes
      CHECK_NOTHROW(expected = run_case(op_case, cpu));
      omp_set_num_threads(threads);
      for (size_t g = 0; g < gpus.size(); ++g) {
        CAPTURE(all[g].name);
        if (op_case.name.find("fp8 products") != std::string::npos && !all[g].ops->has_fp8()) continue;
        outputs[g] += compare(op_case, *gpus[g], expected, all[g].tf32);
      }
    }
    for (int64_t count : outputs) CHECK(count > (limit || only ? 0 : 1000 / parts));
  }
}

}  // namespace blipft::test
