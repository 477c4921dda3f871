// The learning-rate schedules and the optimizers' table.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "blipft/optimizer.h"
#include "blipft/optimizer_names.h"
#include "engine/settings.h"
#include "support/choice_of.h"

using namespace blipft;

TEST_SUITE("optimizer schedule") {
  TEST_CASE("constant, linear and cosine after a linear warm-up") {
    TrainSection train;
    train.lr = 0.5;
    CHECK(learning_rate(train, 0, 10) == 0.5);
    CHECK(learning_rate(train, 9, 10) == 0.5);
    train.warmup_steps = 4;
    for (const char* schedule : {"constant", "linear", "cosine"}) {
      train.lr_schedule = choice_of<LearningRateCurve>(schedule);
      CAPTURE(schedule);
      // As transformers' get_*_schedule_with_warmup and LitGPT: the first step has 0, the first after the warm-up all.
      for (int64_t step = 0; step < 4; ++step)
        CHECK(learning_rate(train, step, 12) == doctest::Approx(0.125 * double(step)));
      CHECK(learning_rate(train, 4, 12) == 0.5);
    }
    train.lr_schedule = LearningRateCurve::linear;
    CHECK(learning_rate(train, 6, 12) == doctest::Approx(0.375));
    CHECK(learning_rate(train, 11, 12) == doctest::Approx(0.0625));
    train.lr_schedule = LearningRateCurve::cosine;
    CHECK(learning_rate(train, 6, 12) == doctest::Approx(0.25 * (1 + std::sqrt(0.5))));
    CHECK(learning_rate(train, 8, 12) == doctest::Approx(0.25));
    CHECK(learning_rate(train, 100, 12) == doctest::Approx(0));
  }

  TEST_CASE("every step of random runs against the closed forms of transformers and LitGPT") {
    std::mt19937 random(2);
    for (int run = 0; run < 200; ++run) {
      TrainSection train;
      train.lr = 1e-5 * (1 + random() % 1000);
      const int64_t total = 2 + static_cast<int64_t>(random() % 300);
      train.warmup_steps = static_cast<int64_t>(random()) % total;
      const double w = static_cast<double>(train.warmup_steps), t = static_cast<double>(total);
      // LitGPT steps CosineAnnealingLR, which torch computes from the rate before: eta' = eta (1 + cos(pi (c + 1) / T)) /
      // (1 + cos(pi c / T)).
      double recursive = train.lr;
      for (int64_t step = 0; step < total; ++step) {
        const double s = static_cast<double>(step);
        const double warm = train.lr * s / std::max(1.0, w);
        train.lr_schedule = LearningRateCurve::linear;
        const double linear = step < train.warmup_steps ? warm : train.lr * std::max(0.0, (t - s) / std::max(1.0, t - w));
        CHECK(learning_rate(train, step, total) == doctest::Approx(linear).epsilon(1e-12));
        train.lr_schedule = LearningRateCurve::cosine;
        const double found = learning_rate(train, step, total);
        if (step < train.warmup_steps) {
          CHECK(found == doctest::Approx(warm).epsilon(1e-12));
          continue;
        }
        CHECK(found == doctest::Approx(recursive).epsilon(1e-9));  // a product of up to 300 roundings near 0
        const double c = s - w, period = t - w, pi = std::acos(-1.0);
        recursive *= (1 + std::cos(pi * (c + 1) / period)) / (1 + std::cos(pi * c / period));
      }
    }
  }

  TEST_CASE("a share of the steps as warm-up is rounded up, as in transformers") {
    TrainSection train, counted;
    train.lr = counted.lr = 1;
    train.lr_schedule = counted.lr_schedule = LearningRateCurve::cosine;
    train.warmup_ratio = 0.03;
    const std::pair<int64_t, int64_t> expected[] = {{100, 3}, {101, 4}, {1, 1}, {33, 1}, {34, 2}, {1000, 30}};
    for (const auto& [total, steps] : expected) {
      counted.warmup_steps = steps;
      for (int64_t step = 0; step < total; ++step)
        CHECK(learning_rate(train, step, total) == learning_rate(counted, step, total));
    }
  }

  TEST_CASE("a warm-up longer than the run stays a warm-up") {
    TrainSection train;
    train.lr = 1;
    train.warmup_steps = 100;
    train.lr_schedule = LearningRateCurve::cosine;
    CHECK(learning_rate(train, 9, 10) == doctest::Approx(0.09));
  }

  TEST_CASE("state of adamw and sgd; the error of an unknown name lists the known ones") {
    TrainSection train;
    CHECK(make_optimizer(train, 0)->states({}, DType::f32).size() == 2);
    train.optim = "sgd";
    CHECK(make_optimizer(train, 0)->states({}, DType::f32).empty());
    train.momentum = 0.9;
    CHECK(make_optimizer(train, 0)->states({}, DType::f32).size() == 1);
    train.optim = "adam";
    for (const std::string& name : optimizer_names()) CHECK(make_optimizer({.optim = name}, 0) != nullptr);
    CHECK_THROWS_WITH_AS(make_optimizer(train, 0), doctest::Contains("adamw"), UserError);
  }
}
