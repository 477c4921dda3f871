// Numbers in a run file that would overflow, hang or take all memory: each is refused with place and key.
#include <doctest/doctest.h>

#include <limits>

#include "blipft/loading.h"
#include "config/config_schema.h"
#include "config/run_file.h"
#include "loading/sampler_settings.h"
#include "loading/step_order.h"

using namespace blipft;
using namespace blipft::testing;

TEST_SUITE("config") {
  TEST_CASE("every number has a largest value, and refuses what is larger") {
    for (const Key& key : config_keys()) {
      Config config;
      const Field field = key.field(config);
      const bool integer = std::holds_alternative<int64_t*>(field), number = std::holds_alternative<double*>(field);
      if ((!integer && !number) || key.full() == "train.seed") continue;
      CAPTURE(key.full());
      CHECK(contains(with_override(key.full() + "=" + (integer ? "9223372036854775807" : "1e308")),
                     key.full() + ": found "));
      if (integer) {
        CHECK(contains(with_override(key.full() + "=1.5"), ", expected an integer"));
        CHECK(contains(with_override(key.full() + "=9223372036854775808"), "it is too large"));
      } else {
        for (const char* value : {".nan", ".inf", "nan", "inf"})
          CHECK(contains(with_override(key.full() + "=" + value), ", expected a number"));
      }
    }
    CHECK(with_override("train.seed=9223372036854775807").empty());
    CHECK(contains(with_override("data.num_train_samples=9223372036854775807"), "and <= 1000000000"));
    CHECK(contains(with_override("train.accumulate_grad_batches=1000000000"),
                   "expected an integer >= 0 and <= 1048576"));
    CHECK(names(message(base, {"train.accumulate_grad_batches=1048576", "train.batch_size=1000"}),
                {"train.accumulate_grad_batches:", "but train.batch_size"}));
    CHECK(contains(with_override("train.eps=1e-300"), "train.eps: found 1e-300"));   // 0 as f32
  }

  TEST_CASE("what is quoted of a run file is cut") {
    const std::string longer(100'000, 'x');
    for (const std::string& text : {base + longer + ": 1\n", base + "train: {" + longer + ": 1}\n",
                                    base + "train: {lr: " + longer + "}\n",
                                    base + "train: {batch_size: " + std::string(100'000, '9') + "}\n"}) {
      const std::string found = message(text);
      CHECK(!found.empty());
      CHECK(found.size() < 700);              // some list the keys that there are
    }
    for (const std::string& text : {longer, longer + "=1", "train.lr=" + longer, "train." + longer + "=1"}) {
      const std::string found = with_override(text);
      CHECK(!found.empty());
      CHECK(found.size() < 1000);
    }
  }

  TEST_CASE("a run file is a regular file") {
    CHECK(contains(message_of([] { (void)load_config("/dev/zero", {}); }), "/dev/zero: is not a regular file"));
  }

  TEST_CASE("counts of samples and steps do not overflow") {
    const int64_t maximum = std::numeric_limits<int64_t>::max();
    Sampler::Settings epoch = settings(8, 2, 1);
    epoch.num_train_samples = maximum;
    CHECK(contains(message_of([&] { (void)Sampler(epoch); }), "data.num_train_samples"));
    CHECK(contains(message_of([&] { (void)Sampler(settings(8, int64_t{1} << 40, int64_t{1} << 40)); }), "lower these"));
    LoadingSettings loading;
    loading.steps = {.max_epochs = maximum, .max_steps = 7};
    CHECK(count_steps(loading, 1000) == 7);
  }
}
