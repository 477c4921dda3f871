// The store may hold tensors in other ways: in blocks, in the host, or not at all for long. Formats and policies of
// this file's own prove that no part of the program needs to know of them.
#include <typeinfo>

#include "strategies/strategy_harness.h"
#include "support/choice_of.h"
#include "support/text_model.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

/// Blocks of 32 numbers: integers of `levels` steps to each side, times a scale. 127 levels lose much, 2^23 hardly more
/// than f32 does.
class BlockFormat final : public Format {
 public:
  explicit BlockFormat(int32_t levels) : levels_(levels) {}
  std::string name() const override { return concat("blocks of ", levels_); }
  int64_t block() const override { return 32; }
  std::vector<Plane> planes() const override { return {{"codes", DType::i32, 32}, {"scales", DType::f32, 1}}; }

  void encode(Ops& ops, const Tensor& values, const std::vector<Tensor>& planes, Stream) const override {
    if (!computes(ops)) return;
    const int64_t count = values.numel();
    for (int64_t b = 0; b * 32 < count; ++b) {
      float maximum = 0;
      for (int64_t i = 0; i < 32; ++i) maximum = std::max(maximum, std::fabs(at(values, b * 32 + i, count)));
      const float scale = maximum / static_cast<float>(levels_);
      planes[1].as<float>()[b] = scale;
      for (int64_t i = 0; i < 32; ++i) {
        const float value = at(values, b * 32 + i, count);
        planes[0].as<int32_t>()[b * 32 + i] = scale > 0 ? static_cast<int32_t>(std::lround(value / scale)) : 0;
      }
    }
  }
  void decode(Ops& ops, const std::vector<Tensor>& planes, const Tensor& values, Stream) const override {
    if (!computes(ops)) return;
    for (int64_t i = 0; i < values.numel(); ++i) {
      const float value = static_cast<float>(planes[0].as<int32_t>()[i]) * planes[1].as<float>()[i / 32];
      if (values.dtype == DType::f32) values.as<float>()[i] = value;
      else values.as<uint16_t>()[i] = float_to_bf16(value);
    }
  }

 private:
  // A dry run's tensors have nothing behind them.
  static bool computes(Ops& ops) {
    static const std::unique_ptr<Ops> cpu = make_cpu_ops();
    return typeid(ops) == typeid(*cpu);
  }
  static float at(const Tensor& values, int64_t i, int64_t count) {
    if (i >= count) return 0;
    return values.dtype == DType::f32 ? values.as<float>()[i] : bf16_to_float(values.as<uint16_t>()[i]);
  }
  int32_t levels_;
};

const BlockFormat kCoarse(127), kFine(1 << 23);

/// Matrices of frozen units in coarse blocks, their norms and biases as ever.
struct FrozenInBlocks : HoldGradients {
  const Format* frozen_format(const Unit&, const Parameter& parameter) const override {
    return parameter.shape.size() > 1 ? &kCoarse : nullptr;
  }
};

/// First moments of the parameters that begin at a whole block in blocks, the others' as ever: ranges of both kinds in
/// one shard.
struct MomentsInBlocks : HoldGradients {
  StateSpec state(const Unit&, const Parameter& parameter, StateSpec spec) const override {
    if (spec.name == "exp_avg" && parameter.offset % kFine.block() == 0) spec.format = &kFine;
    return spec;
  }
};

struct StatesInHost : HoldGradients {
  StateSpec state(const Unit&, const Parameter&, StateSpec spec) const override {
    spec.space = MemorySpace::host;
    return spec;
  }
  MemorySpace master_space() const override { return MemorySpace::host; }
};

const std::vector<Deal> kDeals = {{"ddp"}, {"fsdp"}, {"fsdp", "step"}};

// The bounds of mpi_strategy_test.cpp for f32: sums of 12 * 17 terms in another order.
void check_close(const Outcome& outcome, const Outcome& reference, const Job& job) {
  const Distance d = distance(outcome, reference, job);
  const double bound = 16 * std::sqrt(12.0 * 17) * 0x1p-24;
  CHECK(same_bits(outcome.start, reference.start));
  CHECK(d.loss <= 8 * 0x1p-24);
  CHECK(d.norm <= bound);
  CHECK_MESSAGE(d.gradient <= bound, "gradient of ", d.gradient_unit);
  CHECK_MESSAGE(d.weight <= 3 * bound, "weights of ", d.weight_unit);
}

}  // namespace

TEST_SUITE("mpi storage") {
  TEST_CASE("a frozen tower in blocks: gathered as it is stored, the same values everywhere") {
    const FrozenInBlocks policy;
    for (const char* name : {"blip2_odd", "blip2_ordinary"}) {
      CAPTURE(name);
      Job job = make_job(name);
      job.config.model.freeze = {"vision"};
      const Outcome plain = train_alone(job);
      job.policy = &policy;
      const Outcome reference = train_alone(job);
      CHECK(!same_bits(reference.start, plain.start));
      CHECK(same_bits({reference.weights[0]}, {reference.start[0]}));
      for (const Deal& deal : kDeals) {
        CAPTURE(deal.strategy);
        const Outcome outcome = train_together(job, deal);
        check_close(outcome, reference, job);
        CHECK(same_on_all_ranks(outcome));
      }
    }
  }

  TEST_CASE("moments in blocks beside plain ones: blocks count from a parameter's start on any number of ranks") {
    const MomentsInBlocks policy;
    Job job = make_job("blip2_odd");
    job.policy = &policy;
    const Outcome reference = train_alone(job);
    for (const Deal& deal : kDeals) {
      CAPTURE(deal.strategy);
      check_close(train_together(job, deal), reference, job);
    }
    const TestRun run(job, {"fsdp"}, &mpi_world());
    int64_t in_blocks = 0, plain = 0;
    for (const Unit* unit : run.model().units())
      for (const auto& range : run.store().state(*unit, 0)) (range.state.plain() ? plain : in_blocks) += range.count;
    CHECK(mpi_world().max(in_blocks) > 0);
    CHECK(mpi_world().max(plain) > 0);
  }

  TEST_CASE("a format that does not fit a parameter is refused by name") {
    struct Everything : StoragePolicy {
      StateSpec state(const Unit&, const Parameter&, StateSpec spec) const override {
        spec.format = &kFine;
        return spec;
      }
    } policy;
    Job job = make_job("blip2_odd");
    job.policy = &policy;
    CHECK_THROWS_WITH_AS(TestRun(job, {}, nullptr), doctest::Contains("block of 32"), UserError);
  }

  TEST_CASE("states and masters in the host: the same bits, planned apart") {
    const StatesInHost policy;
    for (Precision precision : {Precision::f32_true, Precision::bf16_mixed}) {
      Job job = make_job("blip2_odd", precision);
      job.config.train.gradient_clip_val = precision == Precision::bf16_mixed ? 0.5 : 0;
      for (const Deal& deal : kDeals) {
        CAPTURE(deal.strategy);
        job.policy = nullptr;
        const Outcome device = train_together(job, deal);
        job.policy = &policy;
        const Outcome host = train_together(job, deal);
        CHECK(host.losses == device.losses);
        CHECK(same_bits(host.weights, device.weights));
        const TestRun run(job, deal, &mpi_world());
        CHECK(run.arena().host_bytes() > 0);
        CHECK(host.total_bytes <= device.total_bytes - run.arena().host_bytes());
      }
    }
  }

  TEST_CASE("parallel.offload: the same losses and weights under every optimizer, precision and strategy") {
    struct Row {
      const char* optim;
      Precision precision;
      double clip;
      bool lora;
    };
    std::vector<Deal> deals = {{"ddp"}, {"fsdp", "always", 0, 2}, {"fsdp", "step"}};
    const int64_t ranks = mpi_world().size();
    if (ranks % 2 == 0) deals.push_back({"fsdp", "always", 0, 1, ranks / 2});
    for (const Row& row : {Row{"adamw", Precision::bf16_true, 0, false}, {"adamw8bit", Precision::bf16_mixed, 0, false},
                           {"adamw8bit", Precision::bf16_true, 0.5, true},
                           {"lion", Precision::bf16_mixed, 0.5, true}}) {
      CAPTURE(row.optim);
      CAPTURE(row.lora);
      Job job = make_job("blip2_ordinary", row.precision);
      job.samples = 4 * ranks;
      job.steps = 2;
      job.config.train.optim = row.optim;
      job.config.train.gradient_clip_val = row.clip;
      if (row.lora) job.config.adapter.kind = AdapterKind::lora, job.config.adapter.r = 64;
      for (const Deal& deal : deals) {
        CAPTURE(deal.strategy);
        const auto trained = [&](const std::vector<OffloadedData>& offload, int64_t& host_bytes) {
          job.config.parallel.offload = offload;
          TestRun run(job, deal, &mpi_world());
          host_bytes = run.arena().host_bytes();
          return run.train();
        };
        int64_t none = 0, host = 0;
        const Outcome here = trained({}, none), there = trained({OffloadedData::optimizer}, host);
        CHECK(none == 0);
        CHECK(host > 0);
        CHECK(there.total_bytes <= here.total_bytes - host);
        CHECK(there.losses == here.losses);
        CHECK(there.norms == here.norms);
        CHECK(same_bits(there.weights, here.weights));
        CHECK(same_on_all_ranks(there));
      }
    }
  }

  TEST_CASE("parameters in the host: read ahead of each use, the same losses and weights") {
    const int64_t ranks = mpi_world().size();
    std::vector<Deal> deals = {{"ddp", "auto", 0, 1, 1}, {"ddp", "auto", 0, 2, 1}, {"fsdp", "always", 0, 2}};
    if (ranks == 1) deals.push_back({"single", "auto", 0, 2, 1});
    if (ranks % 2 == 0) deals.push_back({"fsdp", "always", 0, 1, ranks / 2});
    using enum OffloadedData;
    struct Row {
      const char* model;
      Precision precision;
      std::vector<OffloadedData> offload;
      double clip;
      const char* quantize;                // with adapters
    };
    for (const Row& row : {Row{"blip2_ordinary", Precision::bf16_true, {parameters}, 0, nullptr},
                           {"blip2_untied", Precision::bf16_mixed, {optimizer, parameters}, 0.5, nullptr},
                           {"blip2_ordinary", Precision::bf16_true, {parameters, optimizer}, 0, "none"},
                           {"blip2_ordinary", Precision::bf16_mixed, {parameters}, 0, "nf4"}}) {
      CAPTURE(row.model);
      CAPTURE(row.quantize);
      Job job = make_job(row.model, row.precision);
      job.samples = 4 * ranks;
      job.steps = 2;
      job.evaluates = true;
      job.config.train.gradient_clip_val = row.clip;
      if (row.quantize) job.config.adapter.kind = AdapterKind::lora, job.config.model.quantize = choice_of<WeightQuantization>(row.quantize);
      for (const Deal& deal : deals) {
        CAPTURE(deal.strategy);
        CAPTURE(deal.accumulate);
        Deal here = deal;
        if (deal.strategy != "fsdp") here.shard_ranks = 0;  // ddp holds everything: its groups mean nothing
        job.config.parallel.offload = {};
        const Outcome on_device = train_together(job, here);
        job.config.parallel.offload = row.offload;
        TestRun run(job, deal, &mpi_world());
        const Outcome from_host = run.train();
        CHECK(run.arena().host_bytes() > 0);
        const bool all = row.offload.size() == 2 || row.precision == Precision::bf16_true;
        if (all) CHECK(run.arena().persistent_use().of(Owner::parameters) == 0);
        CHECK(from_host.losses == on_device.losses);
        CHECK(from_host.evaluations == on_device.evaluations);
        CHECK(from_host.norms == on_device.norms);
        CHECK(same_bits(from_host.weights, on_device.weights));
        CHECK(same_on_all_ranks(from_host));
      }
    }
  }

  TEST_CASE("inputs of checkpointed layers in the host: the same losses and weights") {
    for (const char* model : {"blip2_ordinary", "llama_mha"})
      for (const char* act_ckpt : {"half", "full"})
        for (const Deal& deal : {Deal{"ddp", "auto", 0, 2}, {"fsdp", "always", 0, 2}}) {
          CAPTURE(model);
          CAPTURE(act_ckpt);
          CAPTURE(deal.strategy);
          Job job = make_job(model, Precision::bf16_true);
          job.samples = 4 * mpi_world().size();
          job.steps = 2;
          job.evaluates = true;
          job.config.train.act_ckpt = choice_of<LayerCheckpointing>(act_ckpt);
          job.config.train.dropout = true;
          const Outcome here = train_together(job, deal);
          job.config.parallel.offload = {OffloadedData::activations};
          TestRun run(job, deal, &mpi_world());
          const Outcome there = run.train();
          CHECK(run.arena().host_bytes() > 0);
          CHECK(there.losses == here.losses);
          CHECK(there.evaluations == here.evaluations);
          CHECK(there.norms == here.norms);
          CHECK(same_bits(there.weights, here.weights));
        }
  }

  TEST_CASE("where steps have one micro-batch and clip nothing, gradients are not held: the same bits in less memory") {
    const StoragePolicy as_runs_do;
    std::vector<Deal> deals = kDeals;
    if (mpi_world().size() % 2 == 0) deals.push_back({"fsdp", "always", 0, 1, mpi_world().size() / 2});
    for (const char* name : {"blip2_odd", "blip2_untied", "text"})
      for (Precision precision : {Precision::bf16_true, Precision::bf16_mixed}) {
        CAPTURE(name);
        const bool text = name == std::string("text");
        Job job = make_job(text ? "blip2_odd" : name, precision);
        if (text) {
          job.config.model.init = InitialWeights::random;
          job.family = [](const ModelSettings& settings) {
            return std::make_unique<TextModel>(TextModel::Sizes{.layers = 12}, settings);
          };
        }
        for (const Deal& deal : deals) {
          CAPTURE(deal.strategy);
          job.policy = nullptr;
          const Outcome held = train_together(job, deal);
          job.policy = &as_runs_do;
          const Outcome transient = train_together(job, deal);
          CHECK(transient.losses == held.losses);
          CHECK(transient.norms == held.norms);
          CHECK(same_bits(transient.weights, held.weights));
          CHECK(transient.live_bytes < held.live_bytes);
          const TestRun run(job, deal, &mpi_world());
          CHECK(run.store().transient_gradients());
          CHECK(!run.store().held_gradients());
          CHECK(run.arena().persistent_use().of(Owner::gradients) == 0);
        }
      }
  }

  TEST_CASE("where steps clip or have several micro-batches, gradients are held") {
    const StoragePolicy as_runs_do;
    Job job = make_job("blip2_odd");
    job.policy = &as_runs_do;
    job.samples = 2 * 2 * mpi_world().size();  // two micro-batches on any number of ranks
    for (const Deal& deal : kDeals) {
      job.config.train.gradient_clip_val = 0;
      CHECK(!TestRun(job, {deal.strategy, deal.reshard, 0, 2}, &mpi_world()).store().transient_gradients());
      job.config.train.gradient_clip_val = 1;
      CHECK(!TestRun(job, deal, &mpi_world()).store().transient_gradients());
    }
  }
}
