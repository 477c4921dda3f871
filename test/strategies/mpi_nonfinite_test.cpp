// Steps that are skipped because their gradient norm is not finite, under every strategy.
#include "strategies/strategy_harness.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

std::vector<Deal> deals() {
  if (mpi_world().size() == 1) return {{"single"}};
  return {{"ddp"}, {"fsdp", "always"}, {"fsdp", "step"}};
}

}  // namespace

TEST_SUITE("mpi strategies") {
  TEST_CASE("a run that may skip steps trains to the same bits while all are finite") {
    Job job = make_job("blip2_odd");
    StoragePolicy as_the_config_says;      // gradients are consumed at once where nothing has to be skipped
    job.policy = &as_the_config_says;
    for (const Deal& deal : deals()) {
      CAPTURE(deal.strategy);
      job.config.train.on_nonfinite = FaultAction::stop;
      const Outcome stops = train_together(job, deal);
      job.config.train.on_nonfinite = FaultAction::skip;
      const Outcome skips = train_together(job, deal);
      CHECK(stops.gradients[0].empty());   // transient
      CHECK(!skips.gradients[0].empty());
      CHECK(same_bits(skips.weights, stops.weights));
      CHECK(skips.losses == stops.losses);
    }
  }

  TEST_CASE("a step whose norm is not finite changes no weight, on any rank") {
    for (const Precision precision : {Precision::f32_true, Precision::bf16_mixed}) {
      Job job = make_job("blip2_odd", precision);
      job.config.train.on_nonfinite = FaultAction::skip;
      job.config.train.lr = 1e30;          // the first step is finite, and leaves weights that are of no use
      for (const Deal& deal : deals()) {
        CAPTURE(deal.strategy);
        job.steps = 1;
        const Outcome one = train_together(job, deal);
        job.steps = 3;
        const Outcome three = train_together(job, deal);
        CHECK(std::isfinite(three.norms[0]));
        CHECK(!std::isfinite(three.norms[1]));
        CHECK(!std::isfinite(three.norms[2]));
        CHECK(same_bits(one.weights, three.weights));
        CHECK(!same_bits(one.weights, one.start));
        CHECK(same_on_all_ranks(three));
      }
    }
  }
}
