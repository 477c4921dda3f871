// The handling of non-finite steps.
#include <doctest/doctest.h>

#include <limits>

#include "support/choice_of.h"
#include "blipft/config.h"
#include "support/error_message.h"
#include "train/nonfinite_steps.h"

using namespace blipft;
using testing::message_of;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

StepResult step(int64_t number, double loss, double norm) {
  StepResult result;
  result.step = number, result.loss = loss, result.grad_norm = norm;
  return result;
}

Config config_of(const char* what) {
  Config config;
  config.file = "run.yaml";
  config.train.on_nonfinite = choice_of<FaultAction>(what);
  return config;
}

}  // namespace

TEST_SUITE("non-finite steps") {
  TEST_CASE("stop: the first one ends the run, and is named") {
    const Config config = config_of("stop");
    for (const auto& [loss, norm] : {std::pair{kNan, kNan}, {2.0, kInf}, {kInf, 1.0}}) {
      NonFiniteSteps steps(config);
      CHECK(steps.finished(step(0, 2, 1)).empty());
      const std::string message = message_of([&] { steps.finished(step(17, loss, norm)); });
      CHECK(message.find("step 17: loss ") != std::string::npos);
      CHECK(message.find("the one on disk is untouched") != std::string::npos);
      CHECK_THROWS_AS(steps.finished(step(17, loss, norm)), SharedError);
    }
  }

  TEST_CASE("a factor in fp8 that is not finite is named") {
    for (const char* what : {"stop", "skip"}) {
      const Config config = config_of(what);
      NonFiniteSteps steps(config);
      StepResult bad = step(3, kNan, kNan);
      std::string warning;
      const auto finish = [&] { warning = steps.finished(bad); };
      CHECK((message_of(finish) + warning).find("in fp8") == std::string::npos);
      bad.not_finite_in_fp8 = "x of model.layers.0.mlp.down_proj";
      CHECK((message_of(finish) + warning).find("; the first factor in fp8 that is not: x of model.layers.0.mlp.down_proj") != std::string::npos);
    }
  }

  TEST_CASE("skip: counted and named, unless they do not end, were not skipped, or were most of the run") {
    const Config config = config_of("skip");
    NonFiniteSteps steps(config);
    CHECK(steps.finished(step(0, 2, 1)).empty());
    CHECK(steps.finished(step(1, kNan, kNan)).find("step 1") != std::string::npos);
    CHECK(!steps.finished(step(2, 2, kInf)).empty());
    CHECK_THROWS_AS(steps.finished(step(3, kNan, 1)), SharedError);  // its update was made
    CHECK(steps.skipped() == 2);
    CHECK(steps.summary(9) == "2 of 9 steps changed no weight, for their gradient norm was not finite: 1, 2");
    steps.check_run(5);
    CHECK_THROWS_AS(steps.check_run(4), UserError);
    CHECK(steps.finished(step(4, 2, 1)).empty());
    for (int64_t i = 1; i < NonFiniteSteps::kMaxInARow; ++i) CHECK(!steps.finished(step(4 + i, kNan, kNan)).empty());
    CHECK_THROWS_AS(steps.finished(step(30, kNan, kNan)), SharedError);
  }
}
