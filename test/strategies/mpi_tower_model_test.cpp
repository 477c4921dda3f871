// Models with towers under every strategy against one rank; the last rank has no pictures, and runs its tower on padding.
#include "models/vision_golden.h"
#include "strategies/strategy_harness.h"

using namespace blipft;
using namespace blipft::testing;

TEST_SUITE("mpi tower model") {
  TEST_CASE("ddp, fsdp and hybrid as one rank on the whole batch, whichever rank has the pictures") {
    // This Gemma 3 has pictures of 2 x 2 cells.
    for (const auto& [set, number] : {std::pair{"vision_qwen3_vl", 0}, {"vision_qwen2_5_vl", 0}, {"vision_gemma3", 1}}) {
      CAPTURE(set);
      const TemporaryDirectory folder;
      write_vision_model(vision_cases(set)[static_cast<size_t>(number)], folder);
      Job job = make_job(set);
      job.config.model.path = folder.path.string();
      job.config.model.pictures = true;
      job.config.data.text_padding = TextPadding::packed;
      job.config.train.act_ckpt = LayerCheckpointing::half;
      const Outcome reference = train_alone(job);
      const std::unique_ptr<Model> model = job.make_model();
      for (const Unit* unit : model->units())  // the tower learns
        CHECK(reference.weights[static_cast<size_t>(unit->index)] != reference.start[static_cast<size_t>(unit->index)]);
      std::vector<Deal> deals = {{"ddp"}, {"fsdp"}, {"fsdp", "step"}};
      if (mpi_world().size() % 2 == 0) deals.push_back({"fsdp", "always", 0, 1, mpi_world().size() / 2});
      for (const Deal& deal : deals) {
        CAPTURE(deal.strategy);
        CAPTURE(deal.shard_ranks);
        const Outcome outcome = train_together(job, deal);
        const Distance d = distance(outcome, reference, job);
        // Sums of 12 samples * 12 rows, or of 6 pictures * 16 patches, in another order, as in mpi_strategy_test.cpp.
        const double bound = 16 * std::sqrt(12.0 * 12) * 0x1p-24;
        CHECK(d.loss <= 8 * 0x1p-24);
        CHECK(d.norm <= bound);
        CHECK_MESSAGE(d.gradient <= bound, "gradient of ", d.gradient_unit);
        CHECK_MESSAGE(d.weight <= 3 * bound, "weights of ", d.weight_unit);
        CHECK(same_on_all_ranks(outcome));
      }
    }
  }
}
