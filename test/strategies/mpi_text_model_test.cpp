// A family that no file of src/ knows (test/support/text_model.h), under every strategy against one rank.
#include "strategies/strategy_harness.h"
#include "support/text_model.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

Job text_job(const char* text_padding) {
  Job job = make_job("blip2_odd");
  job.config.model.init = "random";
  job.config.data.text_padding = text_padding;
  job.config.train.act_ckpt = "half";
  job.family = [](const ModelSettings& settings) { return std::make_unique<TextModel>(TextModel::Sizes{}, settings); };
  return job;
}

}  // namespace

TEST_SUITE("mpi text model") {
  TEST_CASE("a family of its own: ddp, fsdp and hybrid as one rank on the whole batch") {
    const int64_t ranks = mpi_world().size();
    std::vector<Deal> deals = {{"ddp"}, {"fsdp"}, {"fsdp", "step"}};
    if (ranks % 2 == 0) deals.push_back({"fsdp", "always", 0, 1, ranks / 2});
    for (const char* text_padding : {"max", "packed"}) {
      CAPTURE(text_padding);
      const Job job = text_job(text_padding);
      const Outcome reference = train_alone(job);
      CHECK(!same_bits(reference.weights, reference.start));
      for (const Deal& deal : deals) {
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
  }
}
