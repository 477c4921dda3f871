// Every strategy against one rank on the whole batch, at the world size that mpirun gives (check.sh: 1, 2, 3 and 4).
//
// Rank 0 computes the reference. If the math is the same down to the order of sums, bits must be
// equal; elsewhere the bounds follow from the dtype and the length of the sums, see Tolerance.
#include "strategies/strategy_harness.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

// A batch dealt otherwise changes the order and the grouping of sums over samples and positions, and the shapes of the
// matrix products, hence the order of their inner sums.
struct Tolerance {
  double loss, norm, gradient, weight;

  static Tolerance of(const Job& job) {
    // f32, u = 2^-24: two orders of a sum of K terms differ by about sqrt(K) u of the terms' size. A weight's gradient
    // sums K = 12 samples * 17 positions; what arrives there has passed about eight such sums of forward and backward,
    // and the terms partly cancel: 16 sqrt(K) u = 1.4e-5; the norm can differ by no more. The loss is one mean of
    // positive terms. Adam divides small gradients by themselves, so that each step adds a gradient's error:
    // three times it.
    const double sums = std::sqrt(12.0 * 17), u = 0x1p-24;
    if (job.config.train.precision == Precision::f32_true)
      return {8 * u, 16 * sums * u, 16 * sums * u, 3 * 16 * sums * u};
    // bf16, u = 2^-8: an intermediate whose f32 sum ended elsewhere may round to the neighbouring value, so single
    // elements differ by u; and in bf16-true each micro-batch and each rank rounds its part of the gradient: 8 u = 3 %
    // of a unit's gradient (transformers' own bf16 gradients are 2 to 4 % from float64). After one step weights differ
    // by that much of their way, after which the runs see different models: 4 times it for weights, and the norms of
    // later steps differ like the gradients do.
    const double v = 0x1p-8;
    return {2 * v, 8 * v, 8 * v, 32 * v};
  }
};

void check_close(const Outcome& outcome, const Outcome& reference, const Job& job) {
  const Distance d = distance(outcome, reference, job);
  const Tolerance tolerance = Tolerance::of(job);
  CHECK(same_bits(outcome.start, reference.start));
  CHECK(d.loss <= tolerance.loss);
  CHECK(d.norm <= tolerance.norm);
  CHECK_MESSAGE(d.gradient <= tolerance.gradient, "gradient of ", d.gradient_unit);
  CHECK_MESSAGE(d.weight <= tolerance.weight, "weights of ", d.weight_unit);
}

/// All but the norms' last bits, which are f32 sums of squares: their order is the strategy's and the update's matter.
void check_same_training(const Outcome& outcome, const Outcome& other) {
  CHECK(outcome.losses == other.losses);
  CHECK(same_bits(outcome.start, other.start));
  CHECK(same_bits(outcome.gradients, other.gradients));
  CHECK(same_bits(outcome.weights, other.weights));
  REQUIRE(outcome.norms.size() == other.norms.size());
  for (size_t i = 0; i < outcome.norms.size(); ++i)
    CHECK(outcome.norms[i] == doctest::Approx(other.norms[i]).epsilon(16 * 0x1p-24));
}

void check_same(const Outcome& outcome, const Outcome& other) {
  check_same_training(outcome, other);
  CHECK(outcome.norms == other.norms);
}

std::string describe(const Deal& deal) {
  return concat(deal.strategy, ", reshard ", deal.reshard, ", prefetch ", deal.prefetch_bytes, ", accumulation ",
                deal.accumulate, deal.shard_ranks > 0 ? concat(", groups of ", deal.shard_ranks) : "");
}

bool deals_evenly(const Job& job, const Deal& deal) {
  return job.samples % (mpi_world().size() * deal.accumulate) == 0;
}

// Every strategy with accumulation over `accumulations` micro-batches, those that divide the batch.
std::vector<Deal> deals(const Job& job, const std::vector<int64_t>& accumulations) {
  std::vector<Deal> list;
  for (int64_t accumulate : accumulations) {
    for (const Deal& deal : {Deal{"single", "always", 0, accumulate}, Deal{"ddp", "always", 0, accumulate},
                             Deal{"fsdp", "always", 0, accumulate}, Deal{"fsdp", "step", 0, accumulate}})
      if (deals_evenly(job, deal) && (deal.strategy != "single" || mpi_world().size() == 1)) list.push_back(deal);
  }
  return list;
}

void check_deals(const Job& job, const std::vector<int64_t>& accumulations) {
  const Outcome reference = train_alone(job);
  for (const Deal& deal : deals(job, accumulations)) {
    CAPTURE(describe(deal));
    const Outcome outcome = train_together(job, deal);
    check_close(outcome, reference, job);
    CHECK(same_on_all_ranks(outcome));
  }
}

Job sgd(Job job) {
  job.config.train.optim = "sgd";
  job.config.train.momentum = 0.9;
  job.config.train.lr = 0.3;
  return job;
}

// fsdp in several shard groups of several ranks: from 4 ranks on.
std::vector<Deal> hybrid_deals(const Job& job, const std::vector<int64_t>& accumulations) {
  std::vector<Deal> list;
  const int64_t ranks = mpi_world().size();
  for (int64_t shard_ranks = 2; shard_ranks < ranks; ++shard_ranks)
    for (int64_t accumulate : accumulations)
      for (const char* reshard : {"always", "step"}) {
        const Deal deal{"fsdp", reshard, 0, accumulate, shard_ranks};
        if (ranks % shard_ranks == 0 && deals_evenly(job, deal)) list.push_back(deal);
      }
  return list;
}

const std::vector<std::string> kModels = {"blip2_odd", "blip2_ordinary", "blip2_untied", "blip2_bf16"};
const std::vector<Precision> kPrecisions = {Precision::f32_true, Precision::bf16_true, Precision::bf16_mixed};

}  // namespace

TEST_SUITE("mpi strategies") {
  TEST_CASE("all models, precisions and optimizers: as one rank on the whole batch") {
    for (const std::string& name : kModels)
      for (Precision precision : kPrecisions) {
        CAPTURE(name);
        CAPTURE(choice_word(precision));
        Job job = make_job(name, precision);
        job.config.train.gradient_clip_val = 0.5;  // the norms are above it: every step is clipped
        check_deals(job, {1, 3});
        check_deals(sgd(job), {1});
      }
  }

  TEST_CASE("accumulation over 1 to 4 micro-batches, without clipping") {
    for (Precision precision : kPrecisions) {
      CAPTURE(choice_word(precision));
      Job job = make_job("blip2_odd", precision);
      check_deals(job, {1, 2, 3, 4});
      job.samples = 2 * 2 * mpi_world().size();
      check_deals(job, {1, 2});
    }
  }

  TEST_CASE("linear layers without biases") {
    for (Precision precision : kPrecisions) {
      CAPTURE(choice_word(precision));
      Job job = make_job("blip2_untied", precision);
      job.config.model.path = smooth_model_directory("blip2_untied", false);
      job.config.model.init = InitialWeights::random;
      check_deals(job, {1, 3});
    }
  }

  TEST_CASE("clipping changes the weights") {
    Job job = sgd(make_job("blip2_odd"));
    const Outcome free = train_alone(job);
    job.config.train.gradient_clip_val = 0.5;
    CHECK(distance(train_alone(job), free, job).weight > 0.1);
  }

  TEST_CASE("dropout masks belong to samples, whoever computes them") {
    for (const char* name : {"blip2_odd", "blip2_untied"}) {
      CAPTURE(name);
      Job job = make_job(name);
      const Outcome without = train_alone(job);
      job.config.train.dropout = true;
      CHECK(distance(train_alone(job), without, job).loss > 1e-4);
      check_deals(job, {1, 2, 3});
      Job other = job;
      other.config.steps.seed += 1;
      CHECK(distance(train_alone(other), train_alone(job), job).loss > 1e-4);
    }
  }

  TEST_CASE("frozen towers keep their bits, the others train as ever") {
    const std::vector<std::vector<std::string>> sets = {{"vision"}, {"qformer"}, {"language"}, {"vision", "qformer"},
                                                        {"vision", "language"}, {"qformer", "language"},
                                                        {"vision", "qformer", "language"},
                                                        {"language_projection", "language"}};
    for (const auto& frozen : sets)
      for (const char* name : {"blip2_ordinary", "blip2_untied"}) {
        for (const std::string& tower : frozen) INFO(tower);
        CAPTURE(name);
        Job job = make_job(name);
        job.config.model.freeze = frozen;
        job.config.train.gradient_clip_val = 0.5;
        check_deals(job, {1, 3});
        const Deal deal{"fsdp"};
        const TestRun run(job, {}, nullptr);
        const Outcome outcome = train_together(job, deal);
        for (const Unit* unit : run.model().units()) {
          const size_t i = static_cast<size_t>(unit->index);
          CAPTURE(unit->name());
          CHECK((outcome.weights[i] == outcome.start[i]) == !unit->trainable);
          CHECK(outcome.gradients[i].empty() == !unit->trainable);
        }
      }
    Job job = make_job("blip2_odd", Precision::bf16_mixed);
    job.config.model.freeze = {"vision", "language"};
    check_deals(job, {1, 3});
  }

  TEST_CASE("text lengths that alternate") {
    for (Precision precision : kPrecisions) {
      Job job = make_job("blip2_odd", precision);
      job.config.data.text_padding = TextPadding::longest;
      job.config.train.act_ckpt = LayerCheckpointing::half;
      job.steps = 4;
      REQUIRE(possible_text_shapes(job.config) == std::vector<TextShape>{{8}, {12}});
      check_deals(job, {1, 3});
    }
  }

  TEST_CASE("packed texts: as padded ones, on any number of ranks") {
    for (Precision precision : kPrecisions) {
      Job job = make_job("blip2_odd", precision);
      job.config.train.act_ckpt = LayerCheckpointing::half;
      job.config.train.dropout = true;
      const Outcome padded = train_alone(job);
      job.config.data.text_padding = TextPadding::packed;
      CHECK(possible_text_shapes(job.config).size() > 1);
      for (Deal deal : deals(job, {1})) {
        CAPTURE(describe(deal));
        check_close(train_together(job, deal), padded, job);
      }
    }
  }

  TEST_CASE("mean of micro-batch means: the same micro-batches, dealt to more ranks") {
    Job job = make_job("blip2_odd");
    job.config.steps.loss_normalization = LossNormalization::micro_batch;
    job.samples = 24;
    const Outcome reference = train_alone(job, 12);
    for (Deal deal : deals(job, {12 / mpi_world().size()})) {
      CAPTURE(describe(deal));
      check_close(train_together(job, deal), reference, job);
    }
    Job tokens = job;
    tokens.config.steps.loss_normalization = LossNormalization::tokens;
    CHECK(distance(train_alone(tokens), reference, job).gradient > 0.01);  // captions of unequal length: another loss
    // Captions of equal length: the same loss.
    job.equal_lengths = tokens.equal_lengths = 9;
    const Outcome equal = train_alone(tokens);
    for (Deal deal : deals(job, {1, 3})) {
      CAPTURE(describe(deal));
      check_close(train_together(job, deal), equal, job);
    }
  }

  TEST_CASE("random weights do not depend on the strategy") {
    Job job = make_job("blip2_ordinary");
    job.config.model.init = InitialWeights::random;
    job.steps = 1;
    const Outcome reference = train_alone(job);
    for (const Deal& deal : deals(job, {1})) {
      CAPTURE(describe(deal));
      CHECK(same_bits(train_together(job, deal).start, reference.start));
    }
    job.config.steps.seed += 1;
    CHECK_FALSE(same_bits(train_alone(job).start, reference.start));
  }

  TEST_CASE("a wrong sample on the last rank is noticed") {
    for (Precision precision : kPrecisions)
      for (Job job : {make_job("blip2_odd", precision), sgd(make_job("blip2_odd", precision))}) {
        const Outcome reference = train_alone(job);
        job.wrong_sample = job.samples - 1;
        const Tolerance tolerance = Tolerance::of(job);
        for (const Deal& deal : deals(job, {1})) {
          const Distance d = distance(train_together(job, deal), reference, job);
          if (precision == Precision::f32_true) CHECK(d.norm > 1000 * tolerance.norm);  // in bf16 the norm tells little
          CHECK(d.gradient > 5 * tolerance.gradient);
          CHECK(d.weight > tolerance.weight);
        }
      }
  }
}

TEST_SUITE("mpi equal bits") {
  Job bits_job(Precision precision) {
    Job job = make_job("blip2_odd", precision);
    job.config.model.path = model_directory("blip2_odd");
    job.config.train.dropout = true;
    job.config.train.gradient_clip_val = 0.5;
    return job;
  }

  TEST_CASE("the same run twice") {
    for (Precision precision : kPrecisions)
      for (const Deal& deal : deals(bits_job(precision), {1, 3})) {
        CAPTURE(describe(deal));
        check_same(train_together(bits_job(precision), deal), train_together(bits_job(precision), deal));
      }
  }

  // With lengths that alternate: each of the two shapes has a first step, which is run or captured, and later ones.
  TEST_CASE("steps captured before training or when they come, or never") {
    for (Precision precision : {Precision::f32_true, Precision::bf16_mixed})
      for (const double clip : {0.0, 0.5})
        for (const Deal& deal : deals(bits_job(precision), {3})) {
          CAPTURE(describe(deal));
          CAPTURE(clip);
          Job job = bits_job(precision);
          job.config.data.text_padding = TextPadding::longest;
          job.config.train.gradient_clip_val = clip;
          job.steps = 4;
          job.config.parallel.cuda_graph = false;
          const Outcome never = train_together(job, deal);
          job.config.parallel.cuda_graph = true;
          check_same(train_together(job, deal), never);
          job.prepares = true;
          check_same(train_together(job, deal), never);
        }
  }

  TEST_CASE("activation checkpointing none, half, full") {
    for (Precision precision : kPrecisions)
      for (const char* name : {"blip2_ordinary", "blip2_odd"}) {
        Job job = bits_job(precision);
        job.config.model.path = model_directory(name);
        for (const Deal& deal : deals(job, {1, 3})) {
          CAPTURE(name);
          CAPTURE(describe(deal));
          job.config.train.act_ckpt = LayerCheckpointing::none;
          const Outcome none = train_together(job, deal);
          job.config.train.act_ckpt = LayerCheckpointing::half;
          check_same(train_together(job, deal), none);
          job.config.train.act_ckpt = LayerCheckpointing::full;
          check_same(train_together(job, deal), none);
        }
      }
  }

  TEST_CASE("fsdp: gathered ahead a little or everything") {
    for (Precision precision : kPrecisions)
      for (int64_t accumulate : {1, 3}) {
        const Job job = bits_job(precision);
        for (const char* reshard : {"always", "step"}) {
          if (!deals_evenly(job, {"fsdp", "always", 0, accumulate})) continue;
          CAPTURE(reshard);
          const Outcome usual = train_together(job, {"fsdp", reshard, 0, accumulate});
          for (int64_t bytes : {int64_t{1}, int64_t{20000}, int64_t{60000}, int64_t{1} << 40}) {
            CAPTURE(bytes);
            check_same(train_together(job, {"fsdp", reshard, bytes, accumulate}), usual);
          }
        }
      }
  }

  // With tied weights they differ: a unit used twice is reduced after each use when it is not held.
  TEST_CASE("fsdp: units held over the step or not, one micro-batch, untied head") {
    for (Precision precision : kPrecisions) {
      Job job = bits_job(precision);
      job.config.model.path = model_directory("blip2_untied");
      check_same(train_together(job, {"fsdp", "step"}), train_together(job, {"fsdp", "always"}));
    }
  }

  // Gradients are summed over ranks in rank order in both. Only the sum of squares is grouped otherwise, so the norm
  // may differ in its last bits, and with clipping the weights.
  // Held units add micro-batches up before the ranks are, as ddp.
  TEST_CASE("ddp and fsdp without clipping") {
    for (Precision precision : kPrecisions)
      for (int64_t accumulate : {1, 3}) {
        Job job = bits_job(precision);
        job.config.train.gradient_clip_val = 0;
        if (!deals_evenly(job, {"fsdp", "step", 0, accumulate})) continue;
        const Outcome ddp = train_together(job, {"ddp", "always", 0, accumulate});
        const Outcome fsdp = train_together(job, {"fsdp", "step", 0, accumulate});
        check_same_training(fsdp, ddp);
      }
  }

  // Without clipping a unit is updated as soon as its gradient is final, and the update tells its squares; with a limit
  // that is never reached all are at the end of the step, after a pass over the gradients for the norm.
  TEST_CASE("units updated during backward get the bits of an update at its end") {
    for (Precision precision : kPrecisions)
      for (const Deal& deal : deals(bits_job(precision), {1, 3})) {
        CAPTURE(describe(deal));
        Job job = bits_job(precision);
        job.config.train.gradient_clip_val = 0;
        const Outcome early = train_together(job, deal);
        job.config.train.gradient_clip_val = 1e9;
        check_same_training(train_together(job, deal), early);
      }
  }

  TEST_CASE("one rank: every strategy is single") {
    if (mpi_world().size() > 1) return;
    for (Precision precision : kPrecisions) {
      const Outcome single = train_alone(bits_job(precision), 3);
      check_same(train_together(bits_job(precision), {"ddp", "always", 0, 3}), single);
      check_same(train_together(bits_job(precision), {"fsdp", "step", 0, 3}), single);
    }
  }
}

TEST_SUITE("mpi groups of strategies") {
  TEST_CASE("hybrid sharding: as one rank on the whole batch") {
    const auto check = [](const Job& job, const std::vector<int64_t>& accumulations) {
      const Outcome reference = train_alone(job);
      for (const Deal& deal : hybrid_deals(job, accumulations)) {
        CAPTURE(describe(deal));
        const Outcome outcome = train_together(job, deal);
        check_close(outcome, reference, job);
        CHECK(same_on_all_ranks(outcome));         // of weights: gathered in each shard group
      }
    };
    for (Precision precision : kPrecisions) {
      CAPTURE(choice_word(precision));
      Job job = make_job("blip2_odd", precision);  // with a tied head: a unit that is reduced twice
      job.steps = 2;
      check(job, {2, 3});                          // units are updated during the last micro-batch
      job.config.train.gradient_clip_val = 0.5;    // and at the end of the step
      check(job, {1});
    }
  }

  TEST_CASE("hybrid sharding: the same bits twice, and however much is gathered ahead") {
    Job job = make_job("blip2_odd", Precision::bf16_true);
    job.config.train.dropout = true;
    job.config.train.gradient_clip_val = 0.5;
    for (Deal deal : hybrid_deals(job, {1})) {
      CAPTURE(describe(deal));
      const Outcome usual = train_together(job, deal);
      check_same(train_together(job, deal), usual);
      deal.prefetch_bytes = 20000;
      check_same(train_together(job, deal), usual);
    }
  }

  // Shard groups of one rank add micro-batches up and then sum over all ranks in rank order, which is what ddp does.
  TEST_CASE("shard groups of one rank are ddp") {
    for (Precision precision : kPrecisions)
      for (int64_t accumulate : {1, 2}) {
        const Job job = make_job("blip2_odd", precision);
        const Deal groups{"fsdp", "step", 0, accumulate, 1};
        if (mpi_world().size() == 1 || !deals_evenly(job, groups)) continue;
        check_same_training(train_together(job, groups), train_together(job, {"ddp", "always", 0, accumulate}));
      }
  }

  TEST_CASE("the ranks of a replicate group hold the same shard") {
    for (const Deal& deal : hybrid_deals(make_job("blip2_odd"), {1})) {
      CAPTURE(describe(deal));
      const TestRun run(make_job("blip2_odd"), deal, &mpi_world());
      CHECK(run.store().shards() == deal.shard_ranks);
      for (const Unit* unit : run.model().units()) {
        const Shard& shard = run.store().shard(*unit);
        CHECK(shard.count * deal.shard_ranks == shard.padded);
        CHECK(shard.first == mpi_world().rank() % deal.shard_ranks * shard.count);
      }
    }
  }
}
