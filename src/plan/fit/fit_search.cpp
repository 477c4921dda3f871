// The search; see fit_search.h.
//
// The search first estimates times, with one short dry run for each candidate. Then it checks memory, from the fastest
// candidate on: another dry run gives a lower bound without addresses; if the bound fits, addresses are chosen; only
// candidates that still fit get the full plan of a run.
#include "plan/fit/fit_search.h"

#include <algorithm>
#include <limits>
#include <set>

#include "engine/placement.h"
#include "engine/settings.h"

namespace blipft {

namespace {

// Maximum number of micro-batches in a dry run for memory: further ones need no memory that the second does not.
constexpr int64_t kRecorded = 2;
// A slower row is printed if it needs at most this share of the memory of the row before it.
constexpr double kNotablyLess = 0.93;
// The measured memory of a run is within 0.7 % of its plan (docs/results.md): automatic choices use this share of the
// GPU.
constexpr double kPlanned = 0.99;
// Estimates are within 15 % of measurements (docs/fit.md); their errors are similar for steps of the same samples.
constexpr double kClose = 1.10;
// Number of a run's samples from which its mean text shape is estimated.
constexpr int64_t kSamplesOfMean = int64_t{1} << 18;

// Ordered from the fastest to the slowest.
const std::vector<LayerCheckpointing> kActCkpt = {LayerCheckpointing::none, LayerCheckpointing::half,
                                                  LayerCheckpointing::full};

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns the possible numbers of micro-batches of a rank's step, ascending: the divisors of its samples, and where
// divisors are far apart also powers of two, with empty slots in the last micro-batches.
std::vector<int64_t> counts_of_micro_batches(const Config& resolved, int64_t ranks) {
  const StepsSection& steps = resolved.steps;
  const bool total = steps.total_batch_size > 0;
  const int64_t share = total ? share_of_a_step(resolved, ranks) : steps.batch_size * steps.accumulate_grad_batches;
  if (chooses_batch_size(resolved) && steps.accumulate_grad_batches > 0) return {steps.accumulate_grad_batches};
  std::set<int64_t> counts;
  for (int64_t count = 1; count * count <= share; ++count)
    if (share % count == 0) counts.insert({count, share / count});
  if (total && !depends_on_micro_batch(resolved))
    for (int64_t half = 2; half < share; half *= 2) {
      const auto next = counts.lower_bound(half);  // exists: `share`, one sample each
      if (*next >= half + (half + 1) / 2) counts.insert(ceil_of(share, ceil_of(share, half)));
    }
  std::erase_if(counts, [&](int64_t count) { return ceil_of(share, count) > kMaxSamplesAtOnce; });
  return {counts.begin(), counts.end()};
}

std::vector<FitDealing> dealings(const Config& base, int64_t ranks) {
  if (ranks == 1) return {{base.parallel.strategy, base.parallel.reshard}};
  // `automatic` means ddp here; it is kept so that the row needs no override of the run file.
  const bool given = base.parallel.strategy != StrategyKind::automatic;
  std::vector<FitDealing> all = {{given ? StrategyKind::ddp : StrategyKind::automatic, ReshardPolicy::automatic},
                                 {StrategyKind::fsdp, ReshardPolicy::step},
                                 {StrategyKind::fsdp, ReshardPolicy::always}};
  if (base.parallel.shard_ranks != ShardGroup::all) all.erase(all.begin());
  return all;
}

// Returns the sets of data that can be in host memory with these settings.
std::vector<std::vector<OffloadedData>> offloads_with(LayerCheckpointing act_ckpt, ReshardPolicy reshard) {
  std::vector<std::vector<OffloadedData>> all = {{}, {OffloadedData::optimizer}};
  if (reshard != ReshardPolicy::step)
    all.insert(all.end(), {{OffloadedData::parameters}, {OffloadedData::optimizer, OffloadedData::parameters}});
  if (act_ckpt == LayerCheckpointing::none) return all;
  for (size_t i = 0, without = all.size(); i < without; ++i) {
    all.push_back(all[i]);
    all.back().push_back(OffloadedData::activations);
  }
  return all;
}

bool holds(const Config& config) {
  return cuts_parameters(config.parallel.strategy) && config.parallel.reshard == ReshardPolicy::step;
}

}  // namespace

struct FitSearch::Candidate {
  Config config;
  GroupSizes ranks{1};
  std::vector<TextShape> shapes;
  TextShape mean;
  StepTime time;
  /// Returns a config with few micro-batches: its dry run is faster and differs only in the memory of the input data.
  Config short_step() const {
    Config other = config;
    other.steps.accumulate_grad_batches = std::min(config.steps.accumulate_grad_batches, kRecorded);
    return other;
  }
  /// Returns the bytes that the short step's arena lacks: two copies of the other input data, and memory outside the
  /// arena.
  int64_t besides(const Model& model, const Arena& of_short) const {
    const auto data = [&](const Config& of) {
      return BatchLayout(model.inputs(), of.steps.accumulate_grad_batches, of.steps.batch_size, shapes.back()).bytes();
    };
    return 2 * (data(config) - data(short_step())) +
           bytes_outside_of_arena(config, ranks, of_short.planned_takes() * shapes_held());
  }
  /// Returns about how many bytes the graphs of all micro-batches need more than those of the short step.
  int64_t more_graphs(const Arena& of_short) const {
    const int64_t takes = of_short.planned_takes() * shapes_held();
    const int64_t all = takes * config.steps.accumulate_grad_batches / short_step().steps.accumulate_grad_batches;
    return bytes_outside_of_arena(config, ranks, all) - bytes_outside_of_arena(config, ranks, takes);
  }
  int64_t shapes_held() const { return static_cast<int64_t>(shapes.size()); }
};

// The settings that a search may change besides the micro-batches.
struct FitSearch::Freedom {
  std::vector<LayerCheckpointing> act_ckpt = kActCkpt;
  std::vector<FitDealing> dealings;
  std::optional<std::vector<OffloadedData>> offload;  // nullopt: any
};

FitSearch::Candidate FitSearch::candidate(const Config& resolved, int64_t ranks, int64_t micro_batches) const {
  Candidate candidate;
  candidate.config = resolved;
  StepsSection& steps = candidate.config.steps;
  if (steps.total_batch_size > 0) {
    candidate.config = with_micro_batches(resolved, ranks, micro_batches);
  } else {
    steps.batch_size = steps.batch_size * steps.accumulate_grad_batches / micro_batches;
    steps.accumulate_grad_batches = micro_batches;
  }
  Config beginning = candidate.config;
  const int64_t maximum = std::max<int64_t>(1, kSamplesOfMean / samples_of_a_step(candidate.config, ranks));
  if (steps.max_steps < 0 || steps.max_steps > maximum) beginning.steps.max_steps = maximum;
  candidate.mean = texts_.mean(beginning, ranks);
  return candidate;
}

std::vector<FitSearch::Candidate> FitSearch::candidates(const Config& base, int64_t ranks,
                                                        const Freedom& freedom) const {
  std::vector<Candidate> all;
  const Config resolved = resolve_for_ranks(base, ranks);
  for (const int64_t micro_batches : counts_of_micro_batches(resolved, ranks)) {
    Candidate one = candidate(resolved, ranks, micro_batches);
    for (const LayerCheckpointing act_ckpt : freedom.act_ckpt)
      for (const FitDealing& dealing : freedom.dealings)
        for (const std::vector<OffloadedData>& offload :
             freedom.offload ? std::vector<std::vector<OffloadedData>>{*freedom.offload}
                             : offloads_with(act_ckpt, dealing.reshard)) {
          one.config.train.act_ckpt = act_ckpt;
          ParallelSection& parallel = one.config.parallel;
          if (parallel.devices > 0) parallel.devices = ranks;
          parallel.strategy = dealing.strategy;
          parallel.reshard = dealing.reshard;
          parallel.offload = offload;
          const bool gathers = cuts_parameters(dealing.strategy) || offloads(one.config, OffloadedData::parameters);
          parallel.prefetch_bytes = gathers ? base.parallel.prefetch_bytes : 0;
          one.ranks = group_sizes(one.config, ranks, node_ranks_ > 0 ? node_ranks_ : ranks);
          all.push_back(one);
        }
  }
  return all;
}

// Returns false if the settings do not suit the model: it has nothing to offload, or no frozen layer to quantize.
bool FitSearch::estimate(Candidate& candidate) const {
  try {
    const std::unique_ptr<Model> model = model_.make(candidate.config);
    candidate.time =
        estimate_step_time(candidate.config, *model, candidate.ranks, holds(candidate.config), candidate.mean, rates_);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

// Finds the text shapes. This reads all steps of a run, so it is done only for candidates whose memory is needed.
void FitSearch::find_shapes(Candidate& candidate) const {
  if (candidate.shapes.empty()) candidate.shapes = texts_.shapes(candidate.config, candidate.ranks.all());
}

// The short step of a candidate, recorded once: gives a lower bound of its memory first, then its size with addresses.
class FitSearch::ShortPlan {
 public:
  ShortPlan(const RunModel& model, const Candidate& candidate)
      : candidate_(candidate), config_(candidate.short_step()), model_(model.make(candidate.config)),
        plan_(record_plan(config_, *model_, candidate.ranks, holds(config_), {candidate.shapes.back()})) {}
  /// Returns a lower bound of the device bytes, without gaps between tensors.
  int64_t minimum() const { return plan_.arena->peak_live_bytes() + besides(); }
  /// Returns about how many device bytes the plan of the whole run has.
  int64_t about() const { return minimum() + candidate_.more_graphs(*plan_.arena); }
  /// Chooses the addresses of all tensors and returns the device bytes.
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

// Makes the same plan as --plan and a run with these settings.
FitRow FitSearch::planned(const Candidate& candidate) const {
  const std::unique_ptr<Model> model = model_.make(candidate.config);
  const MemoryPlan plan = plan_memory(candidate.config, *model, candidate.ranks, gpu_bytes_, candidate.shapes, nullptr,
                                      texts_.evaluation());
  return {.config = candidate.config, .ranks = candidate.ranks, .overrides = fit_overrides(requested_, candidate.config),
          .time = candidate.time,
          .device_bytes = plan.arena->total_bytes() + bytes_outside_of_arena(candidate.config, candidate.ranks, plan.arena->planned_takes()),
          .host_bytes = plan.arena->host_bytes(), .text = candidate.mean};
}

// Returns nullopt if the candidate needs more than `limit` bytes.
std::optional<FitRow> FitSearch::fitting(Candidate& candidate, int64_t limit) const {
  find_shapes(candidate);
  {
    ShortPlan plan(model_, candidate);
    if (plan.minimum() > limit || plan.placed() > limit) return std::nullopt;
  }
  FitRow row = planned(candidate);
  if (row.device_bytes > limit) return std::nullopt;
  return row;
}

FitResult FitSearch::search(const Config& base, int64_t ranks, size_t maximum) const {
  Freedom freedom;
  freedom.dealings = dealings(base, ranks);
  std::vector<Candidate> all = candidates(base, ranks, freedom);
  std::erase_if(all, [this](Candidate& candidate) { return !estimate(candidate); });
  // Equal estimates keep the order of candidates: larger micro-batches, less recomputation and fewer transfers come
  // first.
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.time.total() < b.time.total(); });
  FitResult result;
  result.candidates = static_cast<int64_t>(all.size());
  int64_t limit = gpu_bytes_;
  for (Candidate& candidate : all) {
    if (result.rows.size() == maximum) break;
    std::optional<FitRow> row = fitting(candidate, limit);
    if (!row) continue;
    limit = static_cast<int64_t>(kNotablyLess * static_cast<double>(row->device_bytes));
    result.rows.push_back(std::move(*row));
  }
  if (result.rows.empty()) result.nearest = nearest(all);
  return result;
}

FitRow FitSearch::row_of(const Config& config, int64_t ranks) const {
  Candidate candidate;
  candidate.config = config;
  candidate.mean = texts_.mean(config, ranks);
  candidate.ranks = group_sizes(config, ranks, node_ranks_ > 0 ? node_ranks_ : ranks);
  find_shapes(candidate);
  const std::unique_ptr<Model> model = model_.make(candidate.config);
  candidate.time = estimate_step_time(config, *model, candidate.ranks, holds(config), candidate.mean, rates_);
  return planned(candidate);
}

// Returns the candidate that needs about the least memory.
std::optional<FitRow> FitSearch::nearest(std::vector<Candidate>& all) const {
  int64_t minimum = std::numeric_limits<int64_t>::max();
  const Candidate* found = nullptr;
  for (Candidate& candidate : all) {
    find_shapes(candidate);
    if (const int64_t about = ShortPlan(model_, candidate).about(); about < minimum) minimum = about, found = &candidate;
  }
  return found ? std::optional(planned(*found)) : std::nullopt;
}

double FitSearch::seconds_of(const FitRow& row, int64_t micro_batches) const {
  Config config = row.config;
  config.steps.accumulate_grad_batches = micro_batches;
  const std::unique_ptr<Model> model = model_.make(config);
  return estimate_step_time(config, *model, row.ranks, holds(config), row.text, rates_).total();
}

bool FitSearch::close(const FitRow& best, const FitRow& row) { return row.time.total() <= kClose * best.time.total(); }

bool FitSearch::enough(const FitResult& result, const StepTime& next, size_t maximum) const {
  return result.rows.size() >= std::min<size_t>(maximum, 2) &&
         (result.rows.size() == maximum || next.total() > kClose * result.rows.front().time.total());
}

// Recomputing more layers is slower, so it is tried only if the same settings with less recomputation do not fit.
FitResult FitSearch::choose(int64_t ranks, size_t maximum, int64_t host_bytes) const {
  const auto given = [&](const char* key) { return requested_.locations.count(key) > 0; };
  const auto limit = static_cast<int64_t>(kPlanned * static_cast<double>(gpu_bytes_));
  const ParallelSection& parallel = requested_.parallel;
  Freedom freedom;
  freedom.dealings = {{parallel.strategy, parallel.reshard}};
  const bool held = !offloads(requested_, OffloadedData::parameters) && cuts_parameters(parallel.strategy) && parallel.reshard == ReshardPolicy::automatic;
  if (held) freedom.dealings = {{parallel.strategy, ReshardPolicy::step}, {parallel.strategy, ReshardPolicy::always}};
  const bool free_ckpt = !given("train.act_ckpt") && requested_.train.act_ckpt == LayerCheckpointing::none;
  freedom.act_ckpt = {requested_.train.act_ckpt};
  freedom.offload = parallel.offload;
  FitResult result;
  std::vector<Candidate> open = candidates(requested_, ranks, freedom), tried;
  std::erase_if(open, [this](Candidate& candidate) { return !estimate(candidate); });
  while (!open.empty()) {
    const auto first = std::min_element(open.begin(), open.end(), [](const Candidate& a, const Candidate& b) {
      return a.time.total() < b.time.total();
    });
    if (enough(result, first->time, maximum)) break;
    Candidate next = *first;
    open.erase(first);
    ++result.candidates;
    if (std::optional<FitRow> row = fitting(next, limit)) {
      result.rows.push_back(std::move(*row));
      continue;
    }
    tried.push_back(next);
    const auto more = std::find(kActCkpt.begin(), kActCkpt.end(), next.config.train.act_ckpt) + 1;
    if (!free_ckpt || more == kActCkpt.end()) continue;
    next.config.train.act_ckpt = *more;
    if (estimate(next)) open.push_back(std::move(next));
  }
  if (!result.rows.empty()) return result;
  if (!given("parallel.offload") && parallel.offload.empty()) {
    if (free_ckpt) freedom.act_ckpt = kActCkpt;
    freedom.offload.reset();
    result = choose_with_offload(candidates(requested_, ranks, freedom), limit, host_bytes, maximum);
  } else {
    result.nearest = nearest(tried);
  }
  return result;
}

std::optional<FitRow> FitSearch::with_open_act_ckpt(const FitRow& chosen, int64_t ranks, int64_t host_bytes) const {
  Config open = requested_;
  if (chosen.host_bytes == 0 || open.locations.erase("train.act_ckpt") == 0) return std::nullopt;
  open.train.act_ckpt = kActCkpt.front();
  const FitResult found = FitSearch(open, node_ranks_, gpu_bytes_, texts_, model_, rates_).choose(ranks, 1, host_bytes);
  if (found.rows.empty() || close(found.rows.front(), chosen)) return std::nullopt;
  return found.rows.front();
}

FitResult FitSearch::choose_with_offload(std::vector<Candidate> all, int64_t limit, int64_t host_bytes,
                                         size_t maximum) const {
  std::erase_if(all, [this](Candidate& candidate) { return !estimate(candidate); });
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.time.total() < b.time.total(); });
  FitResult result;
  result.candidates = static_cast<int64_t>(all.size());
  for (Candidate& candidate : all) {
    if (enough(result, candidate.time, maximum)) break;
    std::optional<FitRow> row = fitting(candidate, limit);
    if (row && (host_bytes == 0 || row->host_bytes <= host_bytes)) result.rows.push_back(std::move(*row));
  }
  if (result.rows.empty()) result.nearest = nearest(all);
  return result;
}

std::string fit_overrides(const Config& requested, const Config& config) {
  std::string text;
  const auto differs = [&](const char* key, const auto& before, const auto& after) {
    if (!(before == after)) text += concat(text.empty() ? "" : " ", key, "=", after);
  };
  differs("model.quantize", requested.model.quantize, config.model.quantize);
  differs("adapter.kind", requested.adapter.kind, config.adapter.kind);
  differs("parallel.devices", requested.parallel.devices, config.parallel.devices);
  differs("parallel.strategy", requested.parallel.strategy, config.parallel.strategy);
  differs("parallel.reshard", requested.parallel.reshard, config.parallel.reshard);
  differs("parallel.prefetch_bytes", requested.parallel.prefetch_bytes, config.parallel.prefetch_bytes);
  differs("train.act_ckpt", requested.train.act_ckpt, config.train.act_ckpt);
  if (requested.parallel.offload != config.parallel.offload)
    text += concat(text.empty() ? "" : " ", "'parallel.offload=[", choice_list(config.parallel.offload), "]'");
  differs("train.batch_size", requested.steps.batch_size, config.steps.batch_size);  // always differs if it was auto
  // The key is omitted if train.total_batch_size determines it in the run file too.
  if (requested.steps.accumulate_grad_batches != 0 || config.steps.total_batch_size == 0)
    differs("train.accumulate_grad_batches", requested.steps.accumulate_grad_batches,
            config.steps.accumulate_grad_batches);
  differs("train.total_batch_size", requested.steps.total_batch_size, config.steps.total_batch_size);
  return text;
}

}  // namespace blipft
