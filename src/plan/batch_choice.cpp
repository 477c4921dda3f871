// The choice of the micro-batch; see batch_choice.h.
#include "plan/batch_choice.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <sstream>

#include "base/memory_text.h"
#include "blipft/strategy.h"

namespace blipft {

namespace {

// Inverse of choice_list(). Returns nullopt if a word is unknown.
std::optional<std::vector<OffloadedData>> offload_of(const std::string& text) {
  std::vector<OffloadedData> all;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    const auto found = find_choice<OffloadedData>(word);
    if (!found) return std::nullopt;
    all.push_back(*found);
  }
  return all;
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f s", seconds);
  return text;
}

// Returns the settings other than the micro-batches, as far as they differ from the defaults of a run file.
std::string background_text(const ChosenSettings& settings) {
  std::string text;
  if (settings.act_ckpt != LayerCheckpointing::none) text += concat(", act_ckpt ", settings.act_ckpt);
  if (settings.reshard != ReshardPolicy::automatic) text += concat(", reshard ", settings.reshard);
  if (!settings.offload.empty()) text += concat(", offload [", choice_list(settings.offload), "]");
  return text;
}

// "16 x 2, act_ckpt full"
std::string short_text(const ChosenSettings& settings) {
  return concat(settings.batch_size, " x ", settings.micro_batches, background_text(settings));
}

}  // namespace

ChosenSettings ChosenSettings::of(const Config& config) {
  return {config.steps.batch_size, config.steps.accumulate_grad_batches, config.train.act_ckpt,
          config.parallel.reshard, config.parallel.offload};
}

ChosenSettings ChosenSettings::of(const std::vector<std::pair<std::string, std::string>>& values) {
  std::map<std::string, std::string> found(values.begin(), values.end());
  const auto number = [&](const char* key) -> int64_t {
    const std::string& text = found[key];
    return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos ? std::stoll(text) : 0;
  };
  std::string offload = found["parallel.offload"];
  std::erase_if(offload, [](char c) { return c == '[' || c == ']' || c == ' '; });
  const auto act_ckpt = find_choice<LayerCheckpointing>(found["train.act_ckpt"]);
  const auto reshard = find_choice<ReshardPolicy>(found["parallel.reshard"]);
  const auto offloaded = offload_of(offload);
  ChosenSettings settings{number("train.batch_size"), number("train.accumulate_grad_batches"),
                          act_ckpt.value_or(LayerCheckpointing::none), reshard.value_or(ReshardPolicy::automatic),
                          offloaded.value_or(std::vector<OffloadedData>())};
  if (settings.micro_batches == 0 || !act_ckpt || !reshard || !offloaded) settings.batch_size = 0;
  return settings;
}

void ChosenSettings::apply(Config& config) const {
  config.steps.batch_size = batch_size;
  config.steps.accumulate_grad_batches = micro_batches;
  config.train.act_ckpt = act_ckpt;
  config.parallel.reshard = reshard;
  config.parallel.offload = offload;
}

std::string ChosenSettings::description() const {
  return concat(counted(batch_size, "sample"), " x ", micro_batches, " micro-batch", micro_batches == 1 ? "" : "es",
                background_text(*this));
}

Config before_choice(const Config& requested, int64_t ranks) {
  const int64_t given = requested.steps.accumulate_grad_batches;
  return with_micro_batches(requested, ranks, given > 0 ? given : share_of_a_step(requested, ranks));
}

bool may_have(const Config& requested, int64_t ranks, const ChosenSettings& settings) {
  const auto given = [&](const char* key) { return requested.locations.count(key) > 0; };
  if (settings.batch_size == 0) return false;
  const Config like = with_micro_batches(requested, ranks, std::max<int64_t>(1, settings.micro_batches));
  const ParallelSection& parallel = requested.parallel;
  return like.steps.batch_size <= settings.batch_size && settings.batch_size <= kMaxSamplesAtOnce &&
         settings.micro_batches <= share_of_a_step(requested, ranks) &&
         (requested.steps.accumulate_grad_batches == 0 || requested.steps.accumulate_grad_batches == settings.micro_batches) &&
         (!given("train.act_ckpt") || requested.train.act_ckpt == settings.act_ckpt) &&
         (parallel.reshard == ReshardPolicy::automatic || parallel.reshard == settings.reshard) &&
         (settings.reshard == ReshardPolicy::automatic || cuts_parameters(parallel.strategy)) &&
         (!given("parallel.offload") || parallel.offload == settings.offload);
}

std::string choice_text(const std::vector<FitRow>& rows, int64_t gpu_bytes, const std::vector<CandidateTime>& times) {
  std::string text;
  for (size_t i = 0; i < rows.size(); ++i) {
    const ChosenSettings settings = ChosenSettings::of(rows[i].config);
    const CandidateTime time = i < times.size() ? times[i] : CandidateTime{};
    const bool first = text.empty();
    const std::string estimate = seconds_text(rows[i].time.total()), memory = memory_text(rows[i].device_bytes);
    text += first ? settings.description() : concat("; next ", short_text(settings));
    text += ": ";
    if (time.timed()) text += concat("timed ", seconds_text(time.seconds), first ? " a step" : "", ", an estimated ", estimate);
    else text += first ? concat("an estimated ", estimate, " a step") : estimate;
    text += concat(", ", memory, first ? concat(" of ", memory_text(gpu_bytes)) : "");
    if (!time.why_not.empty()) text += concat(time.fails ? ", does not run: " : ", not timed: ", time.why_not);
  }
  return text;
}

std::string faster_text(const FitSearch& search, const Config& requested, const FitRow& chosen, int64_t ranks, int64_t host_bytes) {
  const std::optional<FitRow> faster = search.with_open_act_ckpt(chosen, ranks, host_bytes);
  if (!faster) return "";
  return concat("; without train.act_ckpt in ", location_of(requested, "train.act_ckpt"), ": ",
                short_text(ChosenSettings::of(faster->config)), ", ", seconds_text(faster->time.total()));
}

size_t BatchChoice::open() const {
  if (std::any_of(rows.begin(), rows.end(), [](const FitRow& row) { return row.host_bytes > 0; })) return 0;
  const auto is_close = [&](const FitRow& row) { return FitSearch::close(rows.front(), row); };
  const auto end = std::find_if_not(rows.begin(), rows.end(), is_close);
  const size_t count = std::min(static_cast<size_t>(end - rows.begin()), ChoiceTiming::kMax);
  return count > 1 ? count : 0;
}

BatchChoice choose_batch(const FitSearch& search, const Config& requested, int64_t ranks, int64_t gpu_bytes,
                         int64_t host_bytes, const KeptChoice& earlier, size_t maximum) {
  const ChosenSettings& kept = earlier.settings;
  std::string before;
  if (kept.batch_size > 0 && may_have(requested, ranks, kept)) {
    Config config = requested;
    kept.apply(config);
    const FitRow row = search.row_of(config, ranks);
    const std::string memory = memory_text(row.device_bytes);
    const std::string timed = earlier.timings.empty() ? "" : concat(" (timed: ", earlier.timings, ")");
    const std::string as_begun = concat(kept.description(), ", as chosen when the run began", timed);
    if (row.device_bytes <= gpu_bytes)
      return {.config = row.config, .reason = concat(as_begun, ": ", memory, " of ", memory_text(gpu_bytes)),
              .rows = {}, .anew = "", .timings = earlier.timings, .kept = as_begun};
    before = concat(", since the ", kept.description(), " that the run began with take ", memory);
  } else if (kept.batch_size > 0) {
    before = concat(", since the run began with ", kept.description());
  }
  const FitResult found = search.choose(ranks, maximum, host_bytes);
  if (found.rows.empty()) {
    const std::string minimum = found.nearest ? concat(", which take ", memory_text(found.nearest->device_bytes), " with ",
                                                     ChosenSettings::of(found.nearest->config).description())
                                            : "";
    throw UserError(concat(location_of(requested, "train.total_batch_size"), ": train.batch_size: is auto, and no settings that the ",
                           "run file leaves open fit the ", memory_text(gpu_bytes), " that each rank has", minimum,
                           "; free memory there, or see what ./blipft --plan --fit ", requested.file,
                           " proposes: adapters, more ranks"));
  }
  const std::string anew = before.empty() ? "" : "; chosen anew" + before;
  const std::string faster = faster_text(search, requested, found.rows.front(), ranks, host_bytes);
  return {found.rows.front().config, choice_text(found.rows, gpu_bytes) + faster + anew, found.rows, anew};
}

std::string choice_text_of_cpus(const BatchChoice& choice, int64_t bytes) {
  if (choice.rows.empty()) return choice.kept;
  std::string text;
  for (const FitRow& row : choice.rows) {
    const ChosenSettings settings = ChosenSettings::of(row.config);
    text += text.empty() ? concat(settings.description(), ": fits ", memory_text(bytes)) : concat("; next ", short_text(settings));
  }
  return text + choice.anew;
}

BatchChoice decided(const BatchChoice& choice, const std::vector<CandidateTime>& times, int64_t gpu_bytes) {
  std::vector<CandidateTime> all = times;
  all.resize(choice.rows.size());          // rows without a time keep their estimates and follow the timed rows
  BatchChoice decided{{}, "", {}, choice.anew};
  std::vector<CandidateTime> in_order;
  for (const size_t i : ChoiceTiming::order(all)) {
    decided.rows.push_back(choice.rows[i]);
    in_order.push_back(all[i]);
    if (all[i].timed())
      decided.timings += concat(decided.timings.empty() ? "" : ", ", short_text(ChosenSettings::of(choice.rows[i].config)),
                                " ", seconds_text(all[i].seconds));
  }
  decided.config = decided.rows.front().config;
  decided.reason = choice_text(decided.rows, gpu_bytes, in_order) + choice.anew;
  return decided;
}

TimedStep timed_step(const FitSearch& search, const FitRow& row) {
  const int64_t all = row.config.steps.accumulate_grad_batches;
  TimedStep step{ChosenSettings::of(row.config), ChoiceTiming::micro_batches(all, row.time.total()), row.text, row.time.total(), 1};
  if (step.micro_batches == all) return step;
  step.estimate = search.seconds_of(row, step.micro_batches);
  step.scale = row.time.total() / step.estimate;
  return step;
}

}  // namespace blipft
