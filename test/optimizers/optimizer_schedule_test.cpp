// The learning-rate schedules and the optimizers' table.
#include <doctest/doctest.h>

#include <cmath>

#include "blipft/optimizer.h"

using namespace blipft;

TEST_SUITE("optimizer schedule") {
  TEST_CASE("constant, linear and cosine after a linear warm-up") {
    TrainSection train;
    train.lr = 0.5;
    CHECK(learning_rate(train, 0, 10) == 0.5);
    CHECK(learning_rate(train, 9, 10) == 0.5);
    train.warmup_steps = 4;
    for (const char* schedule : {"constant", "linear", "cosine"}) {
      train.lr_schedule = schedule;
      CAPTURE(schedule);
      // As transformers' get_*_schedule_with_warmup and LitGPT: the first step has 0, the first after the warm-up all.
      for (int64_t step = 0; step < 4; ++step)
        CHECK(learning_rate(train, step, 12) == doctest::Approx(0.125 * double(step)));
      CHECK(learning_rate(train, 4, 12) == 0.5);
    }
    train.lr_schedule = "linear";
    CHECK(learning_rate(train, 6, 12) == doctest::Approx(0.375));
    CHECK(learning_rate(train, 11, 12) == doctest::Approx(0.0625));
    train.lr_schedule = "cosine";
    CHECK(learning_rate(train, 6, 12) == doctest::Approx(0.25 * (1 + std::sqrt(0.5))));
    CHECK(learning_rate(train, 8, 12) == doctest::Approx(0.25));
    CHECK(learning_rate(train, 100, 12) == doctest::Approx(0));
  }

  TEST_CASE("a warm-up longer than the run stays a warm-up") {
    TrainSection train;
    train.lr = 1;
    train.warmup_steps = 100;
    train.lr_schedule = "cosine";
    CHECK(learning_rate(train, 9, 10) == doctest::Approx(0.09));
  }

  TEST_CASE("state of adamw and sgd; unknown names are told the known ones") {
    TrainSection train;
    CHECK(make_optimizer(train)->states({}, DType::f32).size() == 2);
    train.optim = "sgd";
    CHECK(make_optimizer(train)->states({}, DType::f32).empty());
    train.momentum = 0.9;
    CHECK(make_optimizer(train)->states({}, DType::f32).size() == 1);
    train.optim = "adam";
    CHECK_THROWS_WITH_AS(make_optimizer(train), doctest::Contains("adamw"), UserError);
  }
}
