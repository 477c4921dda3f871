// Frozen layers in few bits (model.quantize) and moments in 8 bits (train.optim adamw8bit), under every strategy.
#include "ops/op_context.h"
#include "strategies/strategy_harness.h"
#include "support/choice_of.h"
#include "support/text_model.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

const std::vector<Deal> kDeals = {{"ddp"}, {"fsdp"}, {"fsdp", "step"}};

/// Returns `values`, in `compute`, after they were stored in `format`.
std::vector<float> through(const Format& format, const std::vector<float>& values, DType compute) {
  const std::unique_ptr<Ops> ops = make_cpu_ops();
  const auto n = static_cast<int64_t>(values.size());
  std::vector<std::vector<char>> memory;
  std::vector<Tensor> planes;
  for (const Format::Plane& plane : format.planes()) {
    const int64_t count = format.blocks(n) * plane.per_block;
    memory.emplace_back(static_cast<size_t>(count * dtype_size(plane.dtype)));
    planes.push_back({memory.back().data(), plane.dtype, {count}});
  }
  std::vector<float> copy = values, decoded(values.size());
  std::vector<uint16_t> rounded(values.size());
  const Tensor result{decoded.data(), DType::f32, {n}}, stored{rounded.data(), compute, {n}};
  format.encode(*ops, {copy.data(), DType::f32, {n}}, planes, {});
  if (compute == DType::f32) {
    format.decode(*ops, planes, result, {});
  } else {
    format.decode(*ops, planes, stored, {});
    ops->cast(stored, result, {});
  }
  return decoded;
}

// Sums of 12 * 17 terms in f32 in another order, as mpi_strategy_test.cpp derives it.
const double kBound = 16 * std::sqrt(12.0 * 17) * 0x1p-24;

Job text_job() {
  Job job = make_job("blip2_odd");
  job.config.model.init = InitialWeights::random;
  // Matrices of 4,096 elements and more, three of them packed, beside biases and norms.
  const TextModel::Sizes sizes{.hidden = 64, .inner = 96};
  job.family = [=](const ModelSettings& settings) { return std::make_unique<TextModel>(sizes, settings); };
  return job;
}

}  // namespace

TEST_SUITE("mpi quantized") {
  TEST_CASE("frozen layers in few bits: the values of their codes, everywhere the same") {
    for (const char* name : {"blip2_odd", "blip2_ordinary"})
      for (const std::string quantize : {"nf4", "int8", "nf4_double"}) {
        CAPTURE(name);
        CAPTURE(quantize);
        Job job = make_job(name);
        job.config.model.freeze = {"vision", "language"};
        const Outcome plain = train_alone(job);
        job.config.model.quantize = choice_of<WeightQuantization>(quantize.substr(0, 4) == "int8" ? "int8" : "nf4");
        job.config.model.double_quantize = quantize.ends_with("_double");
        const Outcome reference = train_alone(job);
        const std::unique_ptr<Model> model = job.make_model();
        int64_t quantized = 0;
        for (const Unit* unit : model->units()) {
          const auto i = static_cast<size_t>(unit->index);
          if (!unit->trainable) CHECK(same_bits({reference.weights[i]}, {reference.start[i]}));
          for (const Parameter& parameter : unit->parameters()) {
            CAPTURE(parameter.name);
            const auto of = [&](const Outcome& outcome) {
              const auto first = outcome.start[i].begin() + parameter.offset;
              return std::vector<float>(first, first + parameter.numel());
            };
            const bool is_quantized = !unit->trainable && parameter.kind == ParameterKind::layer_weight;
            quantized += is_quantized;
            CHECK(of(reference) == (is_quantized ? through(format_by_name(quantize), of(plain), DType::f32) : of(plain)));
          }
        }
        CHECK(quantized > 8);
        for (const Deal& deal : kDeals) {
          CAPTURE(deal.strategy);
          const Outcome outcome = train_together(job, deal);
          const Distance d = distance(outcome, reference, job);
          CHECK(same_bits(outcome.start, reference.start));
          CHECK(d.loss <= 8 * 0x1p-24);
          CHECK_MESSAGE(d.gradient <= kBound, "gradient of ", d.gradient_unit);
          CHECK_MESSAGE(d.weight <= 3 * kBound, "weights of ", d.weight_unit);
          CHECK(same_on_all_ranks(outcome));
        }
      }
  }

  TEST_CASE("frozen layers in fp8: the values of codes with a scale for each matrix, everywhere the same") {
    for (const char* name : {"blip2_odd", "blip2_ordinary"}) {
      CAPTURE(name);
      Job job = make_job(name);
      job.config.model.freeze = {"vision", "language"};
      const Outcome plain = train_alone(job);
      job.config.model.quantize = WeightQuantization::fp8;
      const Outcome reference = train_alone(job);
      const std::unique_ptr<Model> model = job.make_model();
      int64_t matrices = 0;
      for (const Unit* unit : model->units()) {
        const auto i = static_cast<size_t>(unit->index);
        std::vector<float> expected = plain.start[i];
        for (const WeightMatrix& matrix : unit->matrices()) {
          if (unit->trainable) continue;
          const auto first = expected.begin() + matrix.offset, last = first + matrix.in * matrix.out;
          const float largest = std::abs(*std::max_element(first, last, [](float a, float b) { return std::abs(a) < std::abs(b); }));
          const float scale = fp8_scale(bits_from_float(largest), DType::f8e4m3);
          for (auto value = first; value != last; ++value)
            *value = fp8_to_float(float_to_fp8(*value / scale, DType::f8e4m3), DType::f8e4m3) * scale;
          ++matrices;
        }
        CHECK(same_bits({reference.start[i]}, {expected}));
      }
      CHECK(matrices > 8);
      for (const Deal& deal : kDeals) {
        CAPTURE(deal.strategy);
        const Outcome outcome = train_together(job, deal);
        CHECK(same_bits(outcome.start, reference.start));
        CHECK(distance(outcome, reference, job).loss <= 8 * 0x1p-24);
        CHECK(same_on_all_ranks(outcome));
      }
    }
  }

  TEST_CASE("the compute dtype of frozen layers is nowhere held, and gathers move the codes") {
    const auto bytes = [&](const char* quantize) {
      Job vision = make_job("blip2_ordinary", Precision::bf16_true);
      vision.config.model.freeze = {"vision"};
      vision.config.model.quantize = choice_of<WeightQuantization>(quantize);
      const TestRun run(vision, {"fsdp"}, &mpi_world());
      int64_t matrices = 0, gathered = 0, held = 0;
      for (const Unit* unit : run.model().units()) {
        if (unit->trainable) continue;
        gathered += run.store().gathered_bytes(*unit);
        for (const ParameterStore::Section& section : run.store().sections(*unit)) {
          held += section.mine.bytes();
          if (section.format->name() != "bf16") continue;
          for (const auto& piece : section.pieces)
            if (piece.parameter->kind == ParameterKind::layer_weight) ++matrices;
        }
      }
      CHECK(gathered == held * mpi_world().size());
      CHECK((matrices == 0) == (std::string(quantize) != "none"));
      bool quantized = false;
      for (const PlanEntry& entry : run.arena().peak_entries())
        quantized = quantized || entry.name == concat("parameters as ", quantize, ": codes");
      CHECK(quantized == (matrices == 0));
      return gathered;
    };
    CHECK(bytes("nf4") < bytes("fp8"));
    CHECK(bytes("fp8") < bytes("int8"));
    CHECK(bytes("int8") < bytes("none"));
  }

  TEST_CASE("decoded units live while they are in use, however long their codes stay") {
    for (const Deal& deal : kDeals) {
      CAPTURE(deal.strategy);
      Job job = make_job("blip2_odd");
      job.config.model.freeze = {"vision", "language"};
      job.config.model.quantize = WeightQuantization::nf4;
      const TestRun run(job, deal, &mpi_world());
      int64_t largest = 0, frozen = 0, decoded = 0;
      for (const Unit* unit : run.model().units())
        if (!run.store().flat(*unit)) largest = std::max(largest, run.store().shard(*unit).padded), ++frozen;
      for (const PlanEntry& entry : run.arena().peak_entries())
        if (entry.name == "decoded units") decoded += entry.bytes;
      CHECK(frozen > 2);
      CHECK(decoded <= 4 * largest);
    }
  }

  TEST_CASE("moments in 8 bits: large matrices in codes, the rest in f32, the same on any number of ranks") {
    for (Precision precision : {Precision::f32_true, Precision::bf16_mixed, Precision::bf16_true}) {
      CAPTURE(choice_word(precision));
      Job job = text_job();
      job.config.train.precision = precision;
      job.config.train.optim = "adamw8bit";
      const Outcome reference = train_alone(job);
      CHECK(!same_bits(reference.weights, reference.start));
      for (const Deal& deal : kDeals) {
        CAPTURE(deal.strategy);
        const Outcome outcome = train_together(job, deal);
        CHECK(same_on_all_ranks(outcome));
        CHECK(same_bits(outcome.start, reference.start));
        const Distance d = distance(outcome, reference, job);
        if (precision != Precision::f32_true) continue;
        CHECK(d.loss <= 8 * 0x1p-24);
        CHECK_MESSAGE(d.gradient <= kBound, "gradient of ", d.gradient_unit);
        // A moment that lies at a midpoint takes either code, and its weight's step changes by up to 1.4 % of the
        // largest: one in 2,000 weights of a unit so makes 3e-4 of the way of all together.
        CHECK_MESSAGE(d.weight <= 3e-4, "weights of ", d.weight_unit);
      }
      const TestRun run(job, {"fsdp"}, &mpi_world());
      int64_t in_values = 0, plain = 0;
      for (const Unit* unit : run.model().units())
        for (const auto& range : run.store().state(*unit, 0)) {
          (range.state.plain() ? plain : in_values) += range.count;
          if (range.state.plain()) CHECK(range.state.format == &plain_format(DType::f32));
          if (unit->name() == "embeddings") CHECK(range.state.plain());
        }
      CHECK(mpi_world().sum(static_cast<double>(in_values)) >= 2 * (4 * 64 * 64 + 2 * 64 * 96) + 128 * 64);
      CHECK(mpi_world().sum(static_cast<double>(plain)) > 0);
    }
  }

  TEST_CASE("Lion and 8-bit AdamW learn under every strategy") {
    for (const char* optim : {"adamw8bit", "lion"}) {
      CAPTURE(optim);
      Job job = text_job();
      job.config.train.optim = optim;
      job.config.train.lr = 3e-3;
      job.steps = 12;
      for (const Deal& deal : kDeals) {
        CAPTURE(deal.strategy);
        const Outcome outcome = train_together(job, deal);
        CHECK(outcome.losses.back() < outcome.losses.front() - 0.05);
        CHECK(same_on_all_ranks(outcome));
      }
    }
  }

  TEST_CASE("stochastic rounding: the same bits under ddp and fsdp, others than to nearest, others with another seed") {
    for (const char* optim : {"adamw", "adamw8bit", "lion", "sgd"}) {
      CAPTURE(optim);
      Job job = text_job();
      job.config.train.precision = Precision::bf16_true;
      job.config.train.optim = optim;
      const Outcome nearest = train_together(job, {"ddp"});
      job.config.train.stochastic_rounding = true;
      const Outcome ddp = train_together(job, {"ddp"}), fsdp = train_together(job, {"fsdp"});
      CHECK(same_bits(ddp.weights, fsdp.weights));
      CHECK(!same_bits(ddp.weights, nearest.weights));
      CHECK(same_on_all_ranks(fsdp));
      CHECK(same_bits(train_together(job, {"fsdp"}).weights, fsdp.weights));
    }
  }
}
