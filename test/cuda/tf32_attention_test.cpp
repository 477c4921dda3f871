// f32 attention with products in TF32 on the GPU against the CPU, at sizes on and off the kernels' tiles.
#include <doctest/doctest.h>

#include <cstdio>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "ops/attention_cases.h"

#if defined(BLIPFT_CUDA)
#include "support/restricted_ops.h"
#endif

namespace blipft::test {
namespace {

/// Rounding to TF32 changes a number by 2^-12 of itself in the root mean square, the product of two by 3e-4. A score,
/// of about 1.3 here, is off by 4e-4, and so are probability and lse; out and the gradients, sums of products with
/// probabilities or their gradients, by 3e-4 to 6e-4.
constexpr double kOutBound = 1.5e-3, kGradientBound = 3e-3, kLseBound = 2.5e-3;

/// Packed samples of random rows, in groups of `group` heads that share keys.
Attend packed(std::mt19937& random, int64_t group, int64_t head_size, bool causal) {
  const int64_t kv_heads = group < 8 ? 2 : 1;
  Attend v{4, kv_heads * group, head_size, 0, 0, causal};
  v.packed = true, v.kv_heads = kv_heads;
  for (int64_t b = 0; b < v.batch; ++b) v.rows.push_back(1 + static_cast<int64_t>(random() % 300));
  v.query_tokens = v.kv_tokens = *std::max_element(v.rows.begin(), v.rows.end());
  v.lengths = random() % 2, v.empty = v.lengths && random() % 2;
  return v;
}

Cases tf32_cases() {
  Cases cases;
  std::mt19937 random(1);
  for (int64_t d : {8, 24, 40, 64, 80, 96, 100, 104, 128}) {
    for (int64_t group : {1, 3, 8})
      for (bool causal : {true, false}) add_attention(cases, kF32, packed(random, group, d, causal));
    add_attention(cases, kF32, {2, 3, d, 32, 257});
    add_attention(cases, kF32, {3, 2, d, 32, 257, false, true, true});
    add_attention(cases, kF32, {2, 2, d, 130, 130, true, true});
    add_attention(cases, kF32, {2, 2, d, 70, 70, true, true, false, 0.25f});
    add_attention(cases, kF32, {2, 2, d, 32, 100, false, false, false, 0.1f});
    Attend grouped{2, 8, d, 65, 129, false, true};
    grouped.kv_heads = 2;
    add_attention(cases, kF32, grouped);
    grouped.dropout = 0.25f;
    add_attention(cases, kF32, grouped);
  }
  for (int64_t maximum : {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129}) {
    Attend v{3, 8, 64, maximum, maximum, true};
    v.packed = true, v.kv_heads = 1, v.rows = {maximum, 0, maximum};
    add_attention(cases, kF32, v);
  }
  return cases;
}

void compare(const Result& found, const Result& expected) {
  CAPTURE(expected.name);
  const std::vector<double> a = numbers_of(found), b = numbers_of(expected);
  const bool lse = expected.name == "lse", out = expected.name == "out";
  if (!lse) CHECK(normalised_error(a, b) <= (out ? kOutBound : kGradientBound));
  int64_t far = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (lse) far += a[i] == b[i] || std::abs(a[i] - b[i]) <= kLseBound ? 0 : 1;
    if (out) far += b[i] == 0 && a[i] != 0 ? 1 : 0;  // zeros are of queries that see no key
  }
  CHECK(far == 0);
}

}  // namespace

TEST_SUITE("cuda_ops") {
  TEST_CASE("the cases of f32 attention in TF32 pass the plan backend") {
    const auto device = make_plan_device();
    const auto ops = make_plan_ops();
    Backend plan(*device, *ops);
    for (const OpCase& op_case : tf32_cases()) {
      CAPTURE(op_case.name);
      CHECK_NOTHROW(run_case(op_case, plan));
    }
  }

  TEST_CASE("f32 attention with products in TF32 agrees with the CPU, and with itself to the bit") {
    if (cuda_device_count() == 0) {
      std::printf("SKIPPED: TF32 attention (no GPU)\n");
      return;
    }
    const auto cpu_device = make_cpu_device(0), cuda_device = make_cuda_device(0);
    cuda_device->bind_thread();
    const auto cpu_ops = make_cpu_ops();
    std::vector<std::unique_ptr<Ops>> all;
    all.push_back(make_cuda_ops(*cuda_device, "", {.tf32 = true}));
#if defined(BLIPFT_CUDA)
    // No clusters: one block takes all heads of a group.
    all.push_back(std::make_unique<RestrictedOps>(*cuda_device, 163 << 10, true));
#endif
    Backend cpu(*cpu_device, *cpu_ops);
    for (const auto& ops : all) {
      Backend gpu(*cuda_device, *ops);
      CAPTURE(ops == all.front());
      for (const OpCase& op_case : tf32_cases()) {
        CAPTURE(op_case.name);
        std::vector<Result> expected, found, again;
        CHECK_NOTHROW(expected = run_case(op_case, cpu));
        CHECK_NOTHROW(found = run_case(op_case, gpu));
        CHECK_NOTHROW(again = run_case(op_case, gpu));
        if (found.size() != expected.size() || again.size() != found.size()) continue;  // reported above
        for (size_t i = 0; i < expected.size(); ++i) {
          compare(found[i], expected[i]);
          CHECK_MESSAGE(found[i].bytes == again[i].bytes, "two runs differ");
        }
      }
    }
  }
}

}  // namespace blipft::test
