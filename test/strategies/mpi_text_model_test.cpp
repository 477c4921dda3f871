// Models that read text alone under every strategy against one rank: LLaMA, T5, and three that no file of src/ knows
// (test/support/text_model.h, sandwich_model.h and toy_encoder_decoder.h).
#include "strategies/strategy_harness.h"
#include "support/choice_of.h"
#include "support/sandwich_model.h"
#include "support/text_model.h"
#include "support/toy_encoder_decoder.h"
#include "support/toy_optimizer.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

Job text_job(const std::string& family, const char* text_padding) {
  const bool own = family == "text model" || family == "sandwich model" || family == "toy encoder-decoder";
  Job job = make_job(own ? "blip2_odd" : family);
  job.config.data.text_padding = choice_of<TextPadding>(text_padding);
  job.config.train.act_ckpt = LayerCheckpointing::half;
  if (!own) return job;
  job.config.model.init = InitialWeights::random;
  if (family == "text model")
    job.family = [](const ModelSettings& settings) { return std::make_unique<TextModel>(TextModel::Sizes{}, settings); };
  else
    job.family = [family](const ModelSettings& settings) -> std::unique_ptr<Model> {
      if (family == "sandwich model") return std::make_unique<SandwichModel>(SandwichSizes{}, settings);
      return std::make_unique<ToyEncoderDecoder>(ToyEncoderDecoder::Design{.tied = true}, settings);
    };
  return job;
}

std::vector<Deal> all_deals() {
  const int64_t ranks = mpi_world().size();
  std::vector<Deal> deals = {{"ddp"}, {"fsdp"}, {"fsdp", "step"}};
  if (ranks % 2 == 0) deals.push_back({"fsdp", "always", 0, 1, ranks / 2});
  return deals;
}

void check_deals(const Job& job) {
  const Outcome reference = train_alone(job);
  CHECK(!same_bits(reference.weights, reference.start));
  for (const Deal& deal : all_deals()) {
    CAPTURE(deal.strategy);
    CAPTURE(deal.shard_ranks);
    const Outcome outcome = train_together(job, deal);
    const Distance d = distance(outcome, reference, job);
    // Sums of 12 samples * 12 rows in another order, as mpi_strategy_test.cpp derives it.
    const double bound = 16 * std::sqrt(12.0 * 12) * 0x1p-24;
    CHECK(same_bits(outcome.start, reference.start));
    CHECK(d.loss <= 8 * 0x1p-24);
    CHECK(d.norm <= bound);
    CHECK_MESSAGE(d.gradient <= bound, "gradient of ", d.gradient_unit);
    CHECK_MESSAGE(d.weight <= 3 * bound, "weights of ", d.weight_unit);
    CHECK(same_on_all_ranks(outcome));
  }
}

}  // namespace

TEST_SUITE("mpi text model") {
  TEST_CASE("families of text alone: ddp, fsdp and hybrid as one rank on the whole batch") {
    for (const char* family : {"text model", "sandwich model", "toy encoder-decoder", "llama_odd", "llama_qwen2"})  // own heads, and tied ones
      for (const char* text_padding : {"max", "packed"}) {
        CAPTURE(family);
        CAPTURE(text_padding);
        check_deals(text_job(family, text_padding));
      }
  }

  TEST_CASE("an optimizer that src/ does not know updates shards as whole parameters") {
    Job job = text_job("sandwich model", "packed");
    job.config.train.optim = "sgd";        // with a momentum: one state, as the toy has
    job.config.train.momentum = 0.9;
    job.config.train.lr = 0.01;
    job.optimizer = [] { return std::make_unique<ToyOptimizer>(); };
    check_deals(job);
    job.steps = 1;
    const Outcome once = train_together(job, {"fsdp"});
    for (size_t u = 0; u < once.weights.size(); ++u)
      for (size_t i = 0; i < once.weights[u].size(); ++i) {
        const float g = once.gradients[u][i], expected = once.start[u][i] - 0.01f * g / (std::fabs(g) + ToyOptimizer::kEps);
        CHECK(once.weights[u][i] == doctest::Approx(expected).epsilon(1e-6));
      }
  }

  TEST_CASE("LLaMA with frozen groups: the same, and these keep their bits") {
    for (const std::vector<std::string>& frozen : {std::vector<std::string>{"embeddings"}, {"layers", "head"}}) {
      Job job = text_job("llama_qwen2", "packed");
      job.config.model.freeze = frozen;
      check_deals(job);
      const Outcome outcome = train_together(job, {"fsdp"});
      const std::unique_ptr<Model> model = job.make_model();
      for (const Unit* unit : model->units()) {
        const size_t i = static_cast<size_t>(unit->index);
        CHECK((outcome.weights[i] == outcome.start[i]) == !unit->trainable);
      }
    }
  }
}
