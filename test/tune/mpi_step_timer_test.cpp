// Steps of candidates, timed on ranks of CPUs: every rank has the same outcome, nothing stays behind, and one rank's failure is
// everybody's.
#include "tune/step_timer.h"

#include "strategies/strategy_harness.h"
#include "support/choice_of.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

Config requested_config(const std::string& model) {
  Config config = make_job(model).config;
  config.steps.batch_size = 2;
  config.parallel.strategy = choice_of<StrategyKind>(mpi_world().size() > 1 ? "fsdp" : "auto");
  return config;
}

// A clock for a machine that is never busy: each look at the clock takes a millisecond.
std::function<double()> steady_clock() {
  return [seconds = 0.0]() mutable { return seconds += 1e-3; };
}

struct Machine {
  std::unique_ptr<Device> device = make_cpu_device(1);
  CommGroups groups{mpi_world(), {mpi_world().size()}, *device, [](const World& world, bool) { return make_mpi_comm(world); }};
  StepTimerParts parts() {
    return {&mpi_world(), device.get(), &groups, {mpi_world().size()}, 0, [] { return make_cpu_ops(); }, steady_clock()};
  }
};

std::vector<TimedStep> candidates(const TextShape& text) {
  return {{{4, 1, LayerCheckpointing::none, ReshardPolicy::automatic, {}}, 1, text, 1e-3, 1},
          {{2, 2, LayerCheckpointing::half, ReshardPolicy::automatic, {}}, 2, text, 1e-3, 1},
          {{1, 64, LayerCheckpointing::none, ReshardPolicy::automatic, {}}, 2, text, 1e-3, 32}};
}

void check_same_everywhere(double value) {
  CHECK(mpi_world().max(value) == value);
  CHECK(-mpi_world().max(-value) == value);
}

}  // namespace

TEST_SUITE("mpi step timer") {
  TEST_CASE("candidates of every kind of model are timed, and give their memory back") {
    for (const char* model : {"blip2_odd", "llama_gqa", "t5_v11", "instructblip_odd"}) {
      CAPTURE(model);
      Machine machine;
      const Config requested = requested_config(model);
      const int64_t before = machine.device->memory().process;
      const bool sources = make_model(requested)->inputs().has_source();
      for (TextShape text : {TextShape{8, 0}, TextShape{8, 11}}) {
        if (sources) text.source_tokens = 5, text.packed_source_rows = text.packed() ? 9 : 0;
        std::vector<TimedStep> steps = candidates(text);
        for (TimedStep& step : steps)      // every sample has a row, and none more than the longest
          if (text.packed()) {
            step.text.packed_rows = 3 * step.settings.batch_size + 1;
            if (sources) step.text.packed_source_rows = 2 * step.settings.batch_size + 1;
          }
        const std::vector<CandidateTime> times =
            time_candidates(machine.parts(), requested, steps);
        REQUIRE(times.size() == 3);
        for (const CandidateTime& time : times) {
          CHECK_MESSAGE(time.timed(), time.why_not);
          check_same_everywhere(time.seconds);
        }
        CHECK(machine.device->memory().process == before);
      }
    }
  }

  TEST_CASE("a run's bits are the same whether candidates were timed before it or not") {
    Job job = make_job("blip2_odd");
    const Deal deal{mpi_world().size() > 1 ? "fsdp" : "single"};
    const Outcome without = train_together(job, deal);
    Machine machine;
    const std::vector<CandidateTime> times = time_candidates(machine.parts(), requested_config("blip2_odd"), candidates({8, 0}));
    REQUIRE(times.front().timed());
    const Outcome with = train_together(job, deal);
    CHECK(with.losses == without.losses);
    CHECK(same_bits(with.weights, without.weights));
  }

  TEST_CASE("a candidate that one rank cannot set up fails on all, and the next one is timed") {
    Machine machine;
    StepTimerParts parts = machine.parts();
    const bool last = mpi_world().rank() + 1 == mpi_world().size();
    int64_t made = 0;
    parts.make_ops = [&]() -> std::unique_ptr<Ops> {
      if (made++ == 0 && last) throw UserError("no memory is left");
      return make_cpu_ops();
    };
    const std::vector<CandidateTime> times = time_candidates(parts, requested_config("llama_gqa"), candidates({8, 0}));
    REQUIRE(times.size() == 3);
    CHECK(times[0].fails);
    CHECK(times[0].why_not == "no memory is left");
    CHECK(times[1].timed());
    CHECK(times[2].timed());
    CHECK(ChoiceTiming::order(times).back() == 0);
  }

  TEST_CASE("steps that would take longer than the time that is left keep their estimate") {
    Machine machine;
    std::vector<TimedStep> steps = candidates({8, 0});
    for (TimedStep& step : steps) step.estimate = 1e-6;
    steps[0].estimate = ChoiceTiming::kSeconds / 3 - 1e-5;
    const std::vector<CandidateTime> times = time_candidates(machine.parts(), requested_config("llama_gqa"), steps);
    CHECK(!times[0].timed());
    CHECK(!times[0].fails);
    CHECK(times[0].why_not == "no time was left for its steps");
    CHECK(times[1].timed());
    steps[0].estimate *= 1.01;             // of which no two have the time
    for (const CandidateTime& time : time_candidates(machine.parts(), requested_config("llama_gqa"), steps)) {
      CHECK(!time.timed());
      CHECK(time.why_not == "steps take too long");
    }
  }
}
