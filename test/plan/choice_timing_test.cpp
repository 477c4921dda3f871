// Which candidates are timed before a run's first step, in what time, what is chosen then, and the line that says so.
#include "plan/choice_timing.h"

#include <doctest/doctest.h>

#include "plan/batch_choice.h"

namespace blipft {
namespace {

// Candidates that take so many seconds to be timed and so many a step; a negative step: it fails.
struct Candidate {
  double takes, step;
};

struct Timed {
  std::vector<CandidateTime> times;
  std::vector<size_t> requested;
  std::vector<TimingAllowance> allowances;
};

Timed timed(const std::vector<Candidate>& candidates, double before = 0) {
  Timed result;
  double now = before;
  result.times = ChoiceTiming::run(candidates.size(), [&] { return now; }, [&](size_t i, const TimingAllowance& allowance) {
    result.requested.push_back(i);
    result.allowances.push_back(allowance);
    now += candidates[i].takes;
    if (candidates[i].step < 0) return CandidateTime{0, "out of memory", true};
    return CandidateTime{candidates[i].step};
  });
  return result;
}

FitRow row(int64_t batch, int64_t micro_batches, double estimate, int64_t host_bytes = 0) {
  FitRow made;
  made.config.steps.batch_size = batch;
  made.config.steps.accumulate_grad_batches = micro_batches;
  made.time.products = estimate;
  made.device_bytes = (10 + batch) << 30;
  made.host_bytes = host_bytes;
  return made;
}

BatchChoice choice(std::vector<FitRow> rows, std::string anew = "") {
  BatchChoice made{rows.front().config, choice_text(rows, int64_t{80} << 30) + anew, rows, anew};
  return made;
}

}  // namespace

TEST_SUITE("choice timing") {
  TEST_CASE("the fastest that was timed is chosen, then the others in their order") {
    const Timed all = timed({{1, 0.12}, {1, 0.11}, {1, 0.13}});
    CHECK(all.requested == std::vector<size_t>{0, 1, 2});
    CHECK(ChoiceTiming::order(all.times) == std::vector<size_t>{1, 0, 2});
    // Each has its share of what is left.
    CHECK(all.allowances[0].left == doctest::Approx(5));
    CHECK(all.allowances[0].share == doctest::Approx(5.0 / 3));
    CHECK(all.allowances[1].share == doctest::Approx(2));
    CHECK(all.allowances[2].share == doctest::Approx(3));
  }

  TEST_CASE("none begins for which less time is left than the longest before it took") {
    const Timed two = timed({{2, 0.12}, {2, 0.13}, {0.1, 0.01}});
    CHECK(two.requested == std::vector<size_t>{0, 1});
    CHECK(!two.times[2].timed());
    CHECK(two.times[2].why_not == "no time was left");
    CHECK(ChoiceTiming::order(two.times) == std::vector<size_t>{0, 1, 2});
    CHECK(timed({{2.6, 0.12}, {0.1, 0.01}}).requested == std::vector<size_t>{0});
    const Timed late = timed({{1, 0.12}, {1, 0.11}}, 5.5);
    CHECK(late.requested.empty());
    CHECK(ChoiceTiming::order(late.times) == std::vector<size_t>{0, 1});
  }

  TEST_CASE("what does not run is not chosen, as long as anything else may") {
    CHECK(ChoiceTiming::order(timed({{1, -1}, {1, 0.2}, {1, 0.3}}).times) == std::vector<size_t>{1, 2, 0});
    CHECK(ChoiceTiming::order(timed({{3, -1}, {1, 0.2}}).times) == std::vector<size_t>{1, 0});  // not timed, but not refused
    CHECK(ChoiceTiming::order(timed({{1, -1}, {1, -1}}).times) == std::vector<size_t>{0, 1});
  }

  TEST_CASE("of long steps a few micro-batches are timed") {
    CHECK(ChoiceTiming::micro_batches(4, 0.3) == 4);
    CHECK(ChoiceTiming::micro_batches(1, 30) == 1);
    CHECK(ChoiceTiming::micro_batches(32, 8) == 2);
    CHECK(ChoiceTiming::micro_batches(64, 4) == 5);
  }

  TEST_CASE("candidates are those within 10 % of the best, three at most, none of which lies in the host") {
    CHECK(choice({row(16, 1, 0.1), row(8, 2, 0.11), row(4, 4, 0.2)}).open() == 2);
    CHECK(choice({row(16, 1, 0.1), row(8, 2, 0.102), row(4, 4, 0.104), row(2, 8, 0.106)}).open() == 3);
    CHECK(choice({row(16, 1, 0.1), row(8, 2, 0.1101)}).open() == 0);
    CHECK(choice({row(16, 1, 0.1)}).open() == 0);
    CHECK(choice({row(16, 1, 0.1, 1), row(8, 2, 0.1)}).open() == 0);
    CHECK(BatchChoice{}.open() == 0);      // kept
  }

  TEST_CASE("the line says what was timed, what was not, and why") {
    const BatchChoice requested = choice({row(16, 1, 0.1), row(8, 2, 0.105), row(4, 4, 0.108), row(2, 8, 0.2)}, "; chosen anew, since");
    const int64_t gpu = int64_t{80} << 30;
    const BatchChoice found = decided(requested, {{0.1234}, {0.1179}, {0, "no time was left"}}, gpu);
    CHECK(found.config.steps.batch_size == 8);
    CHECK(found.reason == "8 samples x 2 micro-batches: timed 0.118 s a step, an estimated 0.105 s, 18.00 GiB of 80.00 GiB; "
                          "next 16 x 1: timed 0.123 s, an estimated 0.100 s, 26.00 GiB; next 4 x 4: 0.108 s, 14.00 GiB, not "
                          "timed: no time was left; next 2 x 8: 0.200 s, 12.00 GiB; chosen anew, since");
    CHECK(found.timings == "8 x 2 0.118 s, 16 x 1 0.123 s");
    const BatchChoice small = decided(requested, {{0, "memory", true}, {0, "memory", true}, {0, "memory", true}}, gpu);
    CHECK(small.config.steps.batch_size == 2);
    CHECK(small.reason.find("2 samples x 8 micro-batches: an estimated 0.200 s a step") == 0);
    CHECK(small.reason.find("next 16 x 1: 0.100 s, 26.00 GiB, does not run: memory") != std::string::npos);
    CHECK(small.timings == "");
    CHECK(choice_text_of_cpus(requested, gpu) == "16 samples x 1 micro-batch: fits 80.00 GiB; next 8 x 2; next 4 x 4; next 2 x 8; "
                                             "chosen anew, since");
    CHECK(choice_text_of_cpus({{}, "16 samples, kept: 26 GiB", {}, "", "", "16 samples, kept"}, gpu) == "16 samples, kept");
  }
}

}  // namespace blipft
