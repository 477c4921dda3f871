// The estimate of a step's time against sums that are written down here by hand.
#include "plan/fit/step_time.h"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/settings.h"
#include "support/golden_files.h"

namespace blipft {
namespace {

constexpr double kNear = 1e-9;             // sums of doubles in another order

Config config_of(Precision precision = Precision::bf16_true) {
  Config config;
  config.file = "run.yaml";
  config.model.path = testing::golden_path("llama_mha");
  config.data.max_text_tokens = 12;
  config.data.text_padding = TextPadding::max;
  config.train.precision = precision;
  config.steps.batch_size = 2;
  return config;
}

struct Estimated {
  StepTime time;
  std::unique_ptr<Model> model;
};

Estimated estimated(const Config& config, int64_t ranks = 1, bool hold = false) {
  Estimated result{{}, make_model(config)};
  result.time = estimate_step_time(config, *result.model, {ranks}, hold, possible_text_shapes(config).back());
  return result;
}

// Weights in whole shards, as they are stored.
double padded_elements(const Config& config, const Model& model, const GroupSizes& ranks, bool hold) {
  const std::unique_ptr<Model> own = make_model(config);
  const MemoryPlan plan = record_plan(config, *own, ranks, hold, {possible_text_shapes(config).back()});
  double sum = 0;
  for (const Unit* unit : own->units()) sum += static_cast<double>(plan.engine->store.shard(*unit).padded);
  CHECK(sum >= static_cast<double>(model.parameter_count()));
  return sum;
}

}  // namespace

TEST_SUITE("step time") {
  TEST_CASE("products: the model's operations, for any number of micro-batches, and what is recomputed") {
    const MachineRates& rates = h200_rates();
    for (const int64_t micro_batches : {1, 2, 3, 4, 7}) {
      CAPTURE(micro_batches);
      Config config = config_of();
      config.steps.accumulate_grad_batches = micro_batches;
      const Estimated plain = estimated(config);
      const double flops = static_cast<double>(micro_batches) * plain.model->flops(2, 12);
      CHECK(plain.time.products == doctest::Approx(flops / rates.bf16).epsilon(kNear));
      config.train.act_ckpt = LayerCheckpointing::full;
      const Estimated full = estimated(config);
      double again = 0;
      for (const Unit* unit : full.model->units()) again += full.model->unit_flops(*unit, Phase::recompute, 2, 12);
      CHECK(again > 0);
      CHECK(full.time.products ==
            doctest::Approx((flops + static_cast<double>(micro_batches) * again) / rates.bf16).epsilon(kNear));
      CHECK(full.time.total() > plain.time.total());
    }
  }

  TEST_CASE("products run at the rate of their precision") {
    Config config = config_of(Precision::f32_true);
    const Estimated exact = estimated(config);
    const double flops = exact.model->flops(2, 12);
    CHECK(exact.time.products == doctest::Approx(flops / h200_rates().f32).epsilon(kNear));
    config.train.matmul_precision = MatmulPrecision::high;
    CHECK(estimated(config).time.products == doctest::Approx(flops / h200_rates().tf32).epsilon(kNear));
    CHECK(estimated(config_of(Precision::bf16_mixed)).time.products ==
          doctest::Approx(flops / h200_rates().bf16).epsilon(kNear));
  }

  TEST_CASE("the update: bytes of gradients, weights and states; offloaded ones go over the link, each way") {
    struct Row {
      const char* optim;
      Precision precision;
      double device, host;                 // bytes of an element: all that is moved; what may lie in the host, each way
    };
    // AdamW in bf16: gradient 2, weight 2 + 2, two moments 4 each; mixed: gradient 4, weight 2, master 4 + 4, moments 8
    // each; SGD has no states, lion one.
    for (const Row& row : {Row{"adamw", Precision::bf16_true, 14, 4}, {"adamw", Precision::bf16_mixed, 30, 12},
                           {"lion", Precision::f32_true, 20, 4}, {"sgd", Precision::bf16_mixed, 14, 4}}) {
      CAPTURE(row.optim);
      Config config = config_of(row.precision);
      config.train.optim = row.optim;
      const Estimated here = estimated(config);
      const double elements = padded_elements(config, *here.model, {1}, false);
      CHECK(here.time.update == doctest::Approx(elements * row.device / h200_rates().memory).epsilon(kNear));
      CHECK(here.time.link == 0);
      CHECK(here.time.link_exposed == 0);
      config.parallel.offload = {OffloadedData::optimizer};
      const Estimated there = estimated(config);
      CHECK(there.time.update ==
            doctest::Approx(elements * (row.device - 2 * row.host) / h200_rates().memory).epsilon(kNear));
      CHECK(there.time.link == doctest::Approx(elements * 2 * row.host / h200_rates().link_both).epsilon(kNear));
      CHECK(there.time.link_exposed < there.time.link);
      CHECK(there.time.total() > here.time.total());
      config.train.gradient_clip_val = 1;  // all updates behind backward
      const Estimated clipped = estimated(config);
      CHECK(clipped.time.link_exposed == there.time.link);
      CHECK(clipped.time.update > there.time.update);
    }
  }

  TEST_CASE("parameters in the host: a layer's weights for each gather, and what the update reads and writes") {
    Config config = config_of();
    config.steps.accumulate_grad_batches = 3;
    const double elements = padded_elements(config, *estimated(config).model, {1}, false);
    config.parallel.offload = {OffloadedData::parameters};
    const Estimated once = estimated(config);
    const MachineRates& rates = h200_rates();
    // Each micro-batch gathers all units at least once and none more than three times; the update reads them again, and
    // writes them.
    CHECK(once.time.link > (3 + 1) * 2 * elements / rates.link);
    CHECK(once.time.link < (9 + 1) * 2 * elements / rates.link + 2 * elements / rates.link_both);
    CHECK(once.time.update == doctest::Approx(elements * (2 + 8) / rates.memory).epsilon(kNear));
    CHECK(once.time.link_exposed >= 0.1 * once.time.link);
    config.steps.accumulate_grad_batches = 6;
    const double streamed = once.time.link - 2 * elements / rates.link;
    CHECK(estimated(config).time.link ==
          doctest::Approx(2 * streamed + 2 * elements / rates.link).epsilon(0.1));  // the first gathers more
  }

  TEST_CASE("activations in the host: the inputs of all layers but the last, out and in") {
    Config config = config_of();
    config.model.path = testing::golden_path("llama_mha");  // two layers
    config.train.act_ckpt = LayerCheckpointing::full;
    config.steps.accumulate_grad_batches = 5;
    CHECK(estimated(config).time.link == 0);
    config.parallel.offload = {OffloadedData::activations};
    const Estimated there = estimated(config);
    const int64_t hidden = 32;
    const double bytes = std::ceil(2 * 12 * hidden * 2 / 256.0) * 256;
    CHECK(there.time.link == doctest::Approx(2 * 5 * bytes / h200_rates().link).epsilon(kNear));
  }

  TEST_CASE("collectives: a share of the bytes for each, twice for sums over all, gathers at their own rate") {
    const double n = 4, share = (n - 1) / n / h200_rates().collectives, of_gathers = (n - 1) / n / h200_rates().gathers;
    Config config = config_of();
    config.steps.accumulate_grad_batches = 5;
    CHECK(estimated(config).time.collectives == 0);
    config.parallel.strategy = StrategyKind::ddp;
    const Estimated ddp = estimated(config, 4);
    CHECK(ddp.time.collectives ==
          doctest::Approx(2 * 2 * padded_elements(config, *ddp.model, {4}, false) * share).epsilon(kNear));
    config.parallel.strategy = StrategyKind::fsdp;
    const Estimated held = estimated(config, 4, true);
    const double padded = padded_elements(config, *held.model, {4}, true);
    CHECK(held.time.collectives == doctest::Approx(2 * padded * (share + of_gathers)).epsilon(kNear));
    // Dropped after each use: each micro-batch gathers and reduces, layers twice.
    const Estimated dropped = estimated(config, 4, false);
    CHECK(dropped.time.collectives > 5 * held.time.collectives);
    CHECK(dropped.time.collectives < 8 * held.time.collectives);
    CHECK(dropped.time.collectives_exposed >= 0.27 * dropped.time.collectives);
  }

  TEST_CASE("quantised weights are unpacked for each use") {
    Config config = config_of();
    config.adapter.kind = AdapterKind::lora;
    const Estimated plain = estimated(config);
    config.model.quantize = WeightQuantization::nf4;
    const Estimated quantized = estimated(config);
    CHECK(quantized.time.products == plain.time.products);
    CHECK(quantized.time.memory > plain.time.memory);
  }
}

}  // namespace blipft
