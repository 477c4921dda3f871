// The decode program in dry runs; see generation_plan.h.
#include "plan/generation_plan.h"

#include <algorithm>

#include "engine/settings.h"
#include "weights/weights.h"

namespace blipft {

namespace {

// If fewer than this share of the useful texts at once fit, units are gathered for each token. A token of few texts
// costs as much as one of many, and gathering a layer takes about ten times as long as reading it.
constexpr int64_t kMinShareKept = 8;

bool gathers_units(const MemoryPlan& plan) {
  return cuts_parameters(plan.strategy) || plan.engine->store.weights_space() == MemorySpace::host;
}

// Records the passes of a decode program, replacing those of an earlier one.
void record_decoding(const DecodeProgramSettings& settings, MemoryPlan& plan) {
  Engine& engine = *plan.engine;
  if (engine.decoder)
    for (const std::string& pass : engine.decoder->passes()) plan.arena->forget_pass(pass);
  plan.decoding = settings;
  engine.decode_with(settings, 0);         // the plan does not depend on the padding id
  // A strategy that gathers units records their order in the first round of passes and uses it in the second.
  for (int i = 0; i < (gathers_units(plan) ? 2 : 1); ++i) engine.decoder->record_passes();
}

// Halves the number of slots from `max` to `min` until `fits(slots)`; with `fixed` only `max` is tried. Returns true if
// a number fits.
template <class Fits>
bool find_slots(int64_t max, int64_t min, int64_t beams, bool fixed, const Fits& fits) {
  for (int64_t slots = max; slots >= min; slots = slots / 2 / beams * beams) {
    if (fits(slots)) return true;
    if (fixed) return false;
  }
  return false;
}

}  // namespace

int64_t peak_of_passes(const Arena& arena, const std::vector<std::string>& passes) {
  int64_t peak = 0;
  for (const std::string& pass : passes) peak = std::max(peak, arena.peak_transient(pass));
  return peak;
}

MemoryPlan plan_generation(const Config& config, Model& model, const GroupSizes& ranks, StrategyKind strategy,
                           const DecodeProgramSettings& settings) {
  MemoryPlan plan = empty_plan(ranks, strategy);
  plan.engine = std::make_unique<Engine>(
      EngineParts{.settings = config, .model = &model, .device = plan.device.get(), .ops = plan.ops.get(),
                  .groups = plan.groups(), .arena = plan.arena.get(), .pixel_statistics = {}, .trains = false},
      strategy, plan.sharded);
  record_decoding(settings, plan);
  plan.arena->plan(std::max(loading_scratch_bytes(), init_scratch_bytes()));
  return plan;
}

MemoryPlan choose_generation(const Config& config, Model& model, const GenerationChoice& choice, bool& found) {
  const int64_t beams = choice.settings.beams, batch_size = config.generate.batch_size;
  const int64_t max = max_slots(choice.settings, batch_size, choice.work.texts, choice.gpu);
  std::vector<StrategyKind> strategies = {StrategyKind::single};
  if (config.parallel.strategy == StrategyKind::fsdp && choice.ranks > 1) strategies = {StrategyKind::fsdp};
  else if (choice.ranks > 1) strategies.push_back(StrategyKind::fsdp);
  MemoryPlan plan;
  for (const StrategyKind strategy : strategies) {
    const GroupSizes ranks = strategy == StrategyKind::fsdp ? GroupSizes(choice.ranks) : GroupSizes(1);
    found = find_slots(max, beams, beams, batch_size > 0, [&](int64_t slots) {
      plan = plan_generation(config, model, ranks, strategy,
                             decode_settings(choice.settings, model.inputs(), choice.work, slots, choice.gpu));
      return choice.fits(plan);
    });
    if (found) break;
  }
  return plan;
}

void plan_validation_texts(const EvaluationWork& work, bool gpu, MemoryPlan& plan) {
  const TextsToGenerate texts = work.of_rank(plan.ranks.all());
  const int64_t room = peak_of_passes(*plan.arena, plan.arena->passes()), beams = work.settings.beams;
  const int64_t max = max_slots(work.settings, work.batch_size, texts.texts, gpu);
  const bool fixed = work.batch_size > 0;
  const auto fits = [&](int64_t slots, bool keeps) {
    DecodeProgramSettings settings = decode_settings(work.settings, work.inputs, texts, slots, gpu);
    settings.keeps_units = keeps;
    record_decoding(settings, plan);
    return peak_of_passes(*plan.arena, plan.engine->decoder->passes()) <= room;
  };
  const auto keeping = [&](int64_t slots) { return fits(slots, true); };
  const auto gathering = [&](int64_t slots) { return fits(slots, false); };
  if (gathers_units(plan) && find_slots(max, std::max(beams, max / kMinShareKept), beams, fixed, keeping)) return;
  if (!find_slots(max, beams, beams, fixed, gathering)) (void)gathering(fixed ? max : beams);
}

}  // namespace blipft
