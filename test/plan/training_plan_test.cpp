// The plan of a run, from facts alone: no file, no MPI, no device.
#include "plan/training_plan.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "io/json_fields.h"
#include "models/families/families.h"

using namespace blipft;

namespace {

// Wide and long enough that a GPU computes about as fast in one micro-batch as in two.
RunModel wide_llama() {
  const nlohmann::json root = {{"model_type", "llama"}, {"hidden_size", 1024}, {"intermediate_size", 4096}, {"num_hidden_layers", 2},
                               {"num_attention_heads", 8}, {"vocab_size", 96}, {"max_position_embeddings", 512}};
  return RunModel(
      [root](const ModelSettings& settings) {
        const JsonFields fields(root, "config.json");
        return make_decoder(read_decoder_config(fields), fields.file(), settings);
      },
      false);
}

Config config_of(int64_t batch_size) {
  Config config;
  config.model.init = InitialWeights::random;
  config.data.max_text_tokens = 512;
  config.data.text_padding = TextPadding::max;
  config.steps.batch_size = batch_size;
  config.steps.accumulate_grad_batches = batch_size > 0 ? 2 : 0;
  config.steps.total_batch_size = batch_size > 0 ? 0 : 64;
  return config;
}

TrainingFacts facts_of(const Config& requested, int64_t ranks, int64_t gpu_bytes) {
  TrainingFacts facts{.ranks = ranks, .node_ranks = ranks, .device = "H200", .on_gpu = true, .free_bytes = gpu_bytes,
                      .left = {gpu_bytes, gpu_bytes}, .model = std::make_shared<RunModel>(wide_llama())};
  const Config config = chooses_batch_size(requested) ? before_choice(requested, ranks) : requested;
  facts.texts = std::make_shared<PlannedTexts>(config, facts.model->make(config)->inputs(), RunData{}, nullptr, false);
  facts.shapes = possible_text_shapes(config);
  return facts;
}

constexpr int64_t kLarge = int64_t{1} << 36;

}  // namespace

TEST_SUITE("training plan") {
  TEST_CASE("a run file that leaves nothing open is planned at once") {
    const Config requested = config_of(8);
    const TrainingPlan plan = plan_training(requested, facts_of(requested, 2, kLarge));
    CHECK(plan.decided());
    CHECK(plan.choice.reason.empty());
    CHECK(to_yaml(plan.config) == to_yaml(requested));
    CHECK(plan.groups.all() == 2);
    CHECK(plan.memory.strategy == StrategyKind::ddp);
    CHECK(plan.memory.arena->total_bytes() > 0);
    CHECK(plan.memory.text_shapes == possible_text_shapes(requested));
    CHECK(plan.model->units().size() == 4);
  }

  TEST_CASE("the same facts give the same plan, and less memory another one") {
    const Config requested = config_of(0);
    const auto planned = [&](int64_t bytes) { return plan_training(requested, facts_of(requested, 1, bytes)); };
    const TrainingPlan one = planned(kLarge), other = planned(kLarge);
    CHECK(to_yaml(one.config) == to_yaml(other.config));
    CHECK(one.choice.reason == other.choice.reason);
    CHECK(one.memory.arena->total_bytes() == other.memory.arena->total_bytes());
    CHECK(samples_of_a_step(one.config, 1) == 64);
    const int64_t outside = bytes_outside_of_arena(one.config, {1}, one.memory.arena->planned_takes());
    const TrainingPlan smaller = planned(outside + one.memory.arena->total_bytes() / 2);
    CHECK(samples_of_a_step(smaller.config, 1) == 64);
    CHECK(ChosenSettings::of(smaller.config) != ChosenSettings::of(one.config));
    CHECK(smaller.memory.arena->total_bytes() < one.memory.arena->total_bytes());
    CHECK_THROWS_WITH_AS(planned(1 << 20), doctest::Contains("no settings that the run file leaves open fit"), UserError);
  }

  TEST_CASE("candidates that estimates do not tell apart are timed, and the second call decides by their times") {
    const Config requested = config_of(0);
    TrainingFacts facts = facts_of(requested, 1, kLarge);
    facts.times_steps = true;
    const TrainingPlan first = plan_training(requested, facts);
    REQUIRE(first.candidates.size() >= 2);
    CHECK(!first.decided());
    CHECK(!first.memory.arena);
    TimedChoice timed{first.choice, std::vector<CandidateTime>(first.candidates.size(), {2.0})};
    timed.times[1].seconds = 1;
    const TrainingPlan plan = plan_training(requested, facts, &timed);
    CHECK(plan.decided());
    CHECK(ChosenSettings::of(plan.config) == first.candidates[1].settings);
    CHECK(plan.choice.reason.find("timed 1.000 s a step") != std::string::npos);
    CHECK(plan.memory.arena->total_bytes() > 0);
  }

  TEST_CASE("a resumed run keeps what its first part chose") {
    const Config requested = config_of(0);
    TrainingFacts facts = facts_of(requested, 1, kLarge);
    facts.kept = {{4, 16, LayerCheckpointing::full, ReshardPolicy::automatic, {}}, "16 x 4 0.118 s"};
    const TrainingPlan plan = plan_training(requested, facts);
    CHECK(ChosenSettings::of(plan.config) == facts.kept.settings);
    CHECK(plan.choice.timings == facts.kept.timings);
  }
}
