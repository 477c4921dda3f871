// The search; see fit_search.h.
//
// Times come first: they take one short dry run each. Then, from the fastest on, memory: a lower bound without places
// from another, places for what that does not rule out, and the plan that a run would make only for what is printed.
#include "run/fit_search.h"

#include <algorithm>
#include <limits>

#include "run/placement.h"

namespace blipft {

namespace {

// Micro-batches of a dry run for memory: the second already finds everything that further ones do.
constexpr int64_t kRecorded = 2;
// A row beside a faster one is worth printing when it takes so much less.
constexpr double kNotablyLess = 0.93;

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> all;
  for (int64_t d = n; d >= 1; --d)
    if (n % d == 0) all.push_back(d);
  return all;
}

struct Dealing {
  std::string strategy, reshard;
};

std::vector<Dealing> dealings(const Config& base, int64_t ranks) {
  if (ranks == 1) return {{base.parallel.strategy, base.parallel.reshard}};
  const std::string ddp = base.parallel.strategy == "auto" ? "auto" : "ddp";  // which it stands for
  std::vector<Dealing> all = {{ddp, "auto"}, {"fsdp", "step"}, {"fsdp", "always"}};
  if (base.parallel.shard_ranks != "all") all.erase(all.begin());
  return all;
}

// What may lie in the host beside such checkpointing and resharding.
std::vector<std::vector<std::string>> offloads_with(const std::string& act_ckpt, const std::string& reshard) {
  std::vector<std::vector<std::string>> all = {{}, {"optimizer"}};
  if (reshard != "step") all.insert(all.end(), {{"parameters"}, {"optimizer", "parameters"}});
  if (act_ckpt == "none") return all;
  for (size_t i = 0, without = all.size(); i < without; ++i) {
    all.push_back(all[i]);
    all.back().push_back("activations");
  }
  return all;
}

std::string list_text(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += concat(text.empty() ? "" : ",", name);
  return text;
}

bool holds(const Config& config) {
  return cuts_parameters(config.parallel.strategy) && config.parallel.reshard == "step";
}

}  // namespace

struct FitSearch::Candidate {
  Config config;
  GroupSizes ranks{1};
  std::vector<TextShape> shapes;
  TextShape mean;
  StepTime time;
  std::unique_ptr<Model> model() const { return make_model(config); }
  /// With few micro-batches: the same memory but for their data, sooner.
  Config short_step() const {
    Config other = config;
    other.train.accumulate_grad_batches = std::min(config.train.accumulate_grad_batches, kRecorded);
    return other;
  }
  /// What such a step has less, in its two copies; and what is outside of the arena, at least.
  int64_t besides(const Model& model, const Arena& of_short) const {
    const auto data = [&](const Config& of) {
      return BatchLayout(model.inputs(), of.train.accumulate_grad_batches, of.train.batch_size, shapes.back()).bytes();
    };
    return 2 * (data(config) - data(short_step())) +
           bytes_outside_of_arena(config, ranks, of_short.planned_takes() * shapes_held());
  }
  /// What the graphs of all micro-batches have more than that, about.
  int64_t more_graphs(const Arena& of_short) const {
    const int64_t takes = of_short.planned_takes() * shapes_held();
    const int64_t all = takes * config.train.accumulate_grad_batches / short_step().train.accumulate_grad_batches;
    return bytes_outside_of_arena(config, ranks, all) - bytes_outside_of_arena(config, ranks, takes);
  }
  int64_t shapes_held() const { return static_cast<int64_t>(shapes.size()); }
};

std::vector<FitSearch::Candidate> FitSearch::candidates(const Config& base, int64_t ranks) const {
  std::vector<Candidate> all;
  const Config resolved = resolve_for_ranks(base, ranks);
  const int64_t samples = resolved.train.batch_size * resolved.train.accumulate_grad_batches;
  for (const int64_t batch : divisors(samples)) {
    if (batch > kMostSamplesAtOnce) continue;
    Candidate candidate;
    candidate.config = resolved;
    candidate.config.train.batch_size = batch;
    candidate.config.train.accumulate_grad_batches = samples / batch;
    candidate.shapes = texts_.shapes(candidate.config, ranks);
    candidate.mean = texts_.mean(candidate.config, ranks);
    for (const char* act_ckpt : {"none", "half", "full"})
      for (const Dealing& dealing : dealings(base, ranks))
        for (const std::vector<std::string>& offload : offloads_with(act_ckpt, dealing.reshard)) {
          candidate.config.train.act_ckpt = act_ckpt;
          ParallelSection& parallel = candidate.config.parallel;
          if (parallel.devices > 0) parallel.devices = ranks;
          parallel.strategy = dealing.strategy;
          parallel.reshard = dealing.reshard;
          parallel.prefetch_bytes = cuts_parameters(dealing.strategy) ? base.parallel.prefetch_bytes : 0;
          parallel.offload = offload;
          candidate.ranks = group_sizes(candidate.config, ranks, node_ranks_ > 0 ? node_ranks_ : ranks);
          all.push_back(candidate);
        }
  }
  return all;
}

// False where the model does not take such settings: nothing to offload, no frozen layer to quantise.
bool FitSearch::estimate(Candidate& candidate) const {
  try {
    const std::unique_ptr<Model> model = candidate.model();
    candidate.time =
        estimate_step_time(candidate.config, *model, candidate.ranks, holds(candidate.config), candidate.mean);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

// A short step of a candidate, recorded once: a bound without places first, then places where that does not rule it out.
class FitSearch::ShortPlan {
 public:
  explicit ShortPlan(const Candidate& candidate)
      : candidate_(candidate), config_(candidate.short_step()), model_(candidate.model()),
        plan_(record_plan(config_, *model_, candidate.ranks, holds(config_), {candidate.shapes.back()})) {}
  /// Device bytes that it cannot do without, gaps between tensors left out.
  int64_t least() const { return plan_.arena->peak_live_bytes() + besides(); }
  /// About how many the whole run's plan will have.
  int64_t about() const { return least() + candidate_.more_graphs(*plan_.arena); }
  /// With every tensor in its place.
  int64_t placed() {
    place_plan(config_, *model_, plan_);
    return plan_.arena->total_bytes() + besides();
  }

 private:
  int64_t besides() const { return candidate_.besides(*model_, *plan_.arena); }

  const Candidate& candidate_;
  const Config config_;
  const std::unique_ptr<Model> model_;
  MemoryPlan plan_;
};

// As --plan and a run with these settings plan it.
FitRow FitSearch::planned(const Candidate& candidate) const {
  const std::unique_ptr<Model> model = candidate.model();
  const MemoryPlan plan = plan_memory(candidate.config, *model, candidate.ranks, gpu_bytes_, candidate.shapes);
  return {candidate.config, candidate.ranks, fit_overrides(asked_, candidate.config), candidate.time,
          plan.arena->total_bytes() + bytes_outside_of_arena(candidate.config, candidate.ranks, plan.arena->planned_takes()),
          plan.arena->host_bytes()};
}

FitResult FitSearch::search(const Config& base, int64_t ranks, size_t most) const {
  std::vector<Candidate> all = candidates(base, ranks);
  std::erase_if(all, [this](Candidate& candidate) { return !estimate(candidate); });
  // Where the estimate sees no difference, what was tried first: larger micro-batches, less recomputed or moved.
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.time.total() < b.time.total(); });
  FitResult result;
  result.candidates = static_cast<int64_t>(all.size());
  int64_t limit = gpu_bytes_, nearest_bytes = std::numeric_limits<int64_t>::max();
  const Candidate* nearest = nullptr;
  for (const Candidate& candidate : all) {
    if (result.rows.size() == most) break;
    ShortPlan plan(candidate);
    if (plan.about() < nearest_bytes) nearest_bytes = plan.about(), nearest = &candidate;
    if (plan.least() > limit || plan.placed() > limit) continue;
    FitRow row = planned(candidate);
    if (row.device_bytes > limit) continue;
    limit = static_cast<int64_t>(kNotablyLess * static_cast<double>(row.device_bytes));
    result.rows.push_back(std::move(row));
  }
  if (result.rows.empty() && nearest) result.nearest = planned(*nearest);
  return result;
}

std::string fit_overrides(const Config& asked, const Config& config) {
  std::string text;
  const auto differs = [&](const char* key, const auto& before, const auto& after) {
    if (!(before == after)) text += concat(text.empty() ? "" : " ", key, "=", after);
  };
  differs("model.quantize", asked.model.quantize, config.model.quantize);
  differs("adapter.kind", asked.adapter.kind, config.adapter.kind);
  differs("parallel.devices", asked.parallel.devices, config.parallel.devices);
  differs("parallel.strategy", asked.parallel.strategy, config.parallel.strategy);
  differs("parallel.reshard", asked.parallel.reshard, config.parallel.reshard);
  differs("parallel.prefetch_bytes", asked.parallel.prefetch_bytes, config.parallel.prefetch_bytes);
  differs("train.act_ckpt", asked.train.act_ckpt, config.train.act_ckpt);
  if (asked.parallel.offload != config.parallel.offload)
    text += concat(text.empty() ? "" : " ", "'parallel.offload=[", list_text(config.parallel.offload), "]'");
  differs("train.batch_size", asked.train.batch_size, config.train.batch_size);
  // Left to train.total_batch_size where the run file does so.
  if (asked.train.accumulate_grad_batches != 0 || config.train.total_batch_size == 0)
    differs("train.accumulate_grad_batches", asked.train.accumulate_grad_batches,
            config.train.accumulate_grad_batches);
  differs("train.total_batch_size", asked.train.total_batch_size, config.train.total_batch_size);
  return text;
}

}  // namespace blipft
