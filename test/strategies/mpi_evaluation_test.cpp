// Evaluations between steps: the loss of the step without dropout, the same under every strategy, and nothing of the
// training changes.
#include "strategies/strategy_harness.h"
#include "support/choice_of.h"
#include "support/text_model.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

Job text_job() {
  Job job = make_job("blip2_odd");
  job.config.model.init = InitialWeights::random;
  job.family = [](const ModelSettings& settings) {
    return std::make_unique<TextModel>(TextModel::Sizes{.layers = 5, .dropout = 0.2f}, settings);
  };
  return job;
}

std::vector<Deal> deals() {
  std::vector<Deal> all = {{"ddp"}, {"ddp", "always", 0, 2}, {"fsdp"}, {"fsdp", "step"}, {"fsdp", "always", 1 << 20}};
  if (mpi_world().size() % 2 == 0) all.push_back({"fsdp", "always", 0, 1, mpi_world().size() / 2});
  return all;
}

}  // namespace

TEST_SUITE("mpi evaluation") {
  TEST_CASE("evaluations between steps: the same loss under every strategy, and training's bits do not change") {
    for (const bool text : {true, false})
      for (const char* padding : {"packed", "longest"}) {
        CAPTURE(text);
        CAPTURE(padding);
        Job job = text ? text_job() : make_job("blip2_untied");
        job.config.data.text_padding = choice_of<TextPadding>(padding);
        job.evaluates = true;
        const Outcome reference = train_alone(job);
        // Without dropout the step's loss is that of its samples before it; f32 sums of some 100 labels.
        REQUIRE(reference.evaluations.size() == reference.losses.size());
        for (size_t i = 0; i < reference.losses.size(); ++i)
          CHECK(reference.evaluations[i] == doctest::Approx(reference.losses[i]).epsilon(1e-6));
        CHECK(reference.evaluations.back() != reference.evaluations.front());
        for (const Deal& deal : deals()) {
          // Fewer texts a micro-batch may not fit the smaller shape, or not come out even.
          const bool even = job.samples % (deal.accumulate * mpi_world().size()) == 0;
          if (deal.accumulate > 1 && (padding == std::string("packed") || !even)) continue;
          CAPTURE(deal.strategy);
          CAPTURE(deal.reshard);
          CAPTURE(deal.accumulate);
          job.evaluates = true;
          const Outcome outcome = train_together(job, deal);
          for (size_t i = 0; i < outcome.losses.size(); ++i)
            CHECK(outcome.evaluations[i] == doctest::Approx(outcome.losses[i]).epsilon(1e-6));
          CHECK(same_on_all_ranks(outcome));
          job.evaluates = false;
          const Outcome without = train_together(job, deal);
          CHECK(without.losses == outcome.losses);
          CHECK(same_bits(without.weights, outcome.weights));
          CHECK(without.evaluations.empty());
        }
      }
  }

  TEST_CASE("an evaluation drops nothing, whatever the step does") {
    Job job = text_job();
    job.evaluates = true;
    const Outcome plain = train_together(job, {"fsdp"});
    job.config.train.dropout = true;
    const Outcome dropping = train_together(job, {"fsdp"});
    CHECK(dropping.losses.front() != plain.losses.front());
    CHECK(dropping.evaluations.front() == plain.evaluations.front());
  }
}
