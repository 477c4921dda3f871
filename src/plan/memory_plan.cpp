// The dry run of a step and its table; see memory_plan.h.
#include "plan/memory_plan.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <map>
#include <sstream>

#include "base/memory_text.h"
#include "checkpoint/saving.h"
#include "engine/settings.h"
#include "engine/run_data.h"
#include "engine/step_program.h"
#include "loading/picture_reader.h"
#include "plan/generation_plan.h"
#include "plan/planned_texts.h"

namespace blipft {

namespace {

// Returns the memory that early gathers may add to a plan, because tensors then pack less tightly: 4.5 %, which hides
// most of the waiting. With checkpointing, memory is scarce: allow 0.2 %.
int64_t idle_memory_allowance(const Config& config, int64_t bytes) {
  return config.train.act_ckpt == LayerCheckpointing::none ? bytes * 9 / 200 : bytes / 500;
}

// The inputs of a dry run.
struct PlannedRun {
  const Config& config;
  Model& model;
  GroupSizes ranks;
  std::vector<TextShape> text_shapes;
  const StoragePolicy* policy;
  const EvaluationWork* evaluation = nullptr;  // optional
  bool gpu = false;
  int64_t fp8_kept_bytes = 0;
  bool fp8_keep_inputs = false;
};

// Values that stay in fp8 leave 1/64 of the GPU's memory free.
constexpr int64_t kShareLeftByQuantized = 64;

// Records the reservations and releases of a step, without choosing addresses.
MemoryPlan record_step(const PlannedRun& run, bool hold, double memory_share) {
  const Config& config = run.config;
  MemoryPlan plan = empty_plan(run.ranks, strategy_of(config, run.ranks.all()));
  plan.optimizer = make_optimizer(config.train, config.steps.seed);
  plan.text_shapes = run.text_shapes;
  plan.sharded = {hold, memory_share, config.parallel.prefetch_bytes};
  plan.fp8_kept_bytes = run.fp8_kept_bytes;
  plan.fp8_keep_inputs = run.fp8_keep_inputs;
  plan.spans = std::make_unique<SpanRecorder>();
  const bool record = config.trace.enabled && config.trace.spans != SpanTracing::none;
  plan.engine = std::make_unique<Engine>(
      EngineParts{.settings = config, .model = &run.model, .device = plan.device.get(), .ops = plan.ops.get(),
                  .groups = plan.groups(), .arena = plan.arena.get(), .optimizer = plan.optimizer.get(), .policy = run.policy,
                  .spans = record ? plan.spans.get() : nullptr, .pixel_statistics = {}, .text_shapes = run.text_shapes,
                  .activity = nullptr, .fp8_kept_bytes = run.fp8_kept_bytes, .fp8_keep_inputs = run.fp8_keep_inputs},
      plan.strategy, plan.sharded);
  plan.sharded = plan.engine->sharded;
  plan.engine->program->record_passes();
  if (run.evaluation) plan_validation_texts(*run.evaluation, run.gpu, plan);
  return plan;
}

void place(const PlannedRun& run, MemoryPlan& plan) { place_plan(run.config, run.model, plan); }

MemoryPlan dry_run(const PlannedRun& run, bool hold) {
  MemoryPlan plan = record_step(run, hold, 0);
  place(run, plan);
  return plan;
}

// Returns a plan with earlier gathers and later reductions that uses at most the idle memory allowance more than `plan`
// and stays within `limit`. Choosing addresses in a tight plan takes a second or two, recording it about 10 ms: a plan
// whose peak_live_bytes() are already too large gets no addresses.
MemoryPlan with_idle_memory_used(const PlannedRun& run, int64_t limit, MemoryPlan plan) {
  const int64_t bytes = plan.arena->total_bytes();
  const int64_t maximum = std::min(bytes + idle_memory_allowance(run.config, bytes), std::max(bytes, limit));
  for (double share : {1.12, 1.09, 1.06, 1.03, 1.0, 0.96, 0.93, 0.9, 0.87, 0.84, 0.8}) {
    MemoryPlan other = record_step(run, false, share);
    if (other.arena->peak_live_bytes() > maximum) continue;
    place(run, other);
    if (other.arena->total_bytes() <= maximum) return other;
  }
  return plan;
}

// Returns the bytes of the smallest plan that plan_memory() can choose, and of the memory outside the arena. One dry
// run is enough because with_idle_memory_used() stays within the limit.
int64_t min_planned_bytes(const PlannedRun& run) {
  const bool hold = cuts_parameters(strategy_of(run.config, run.ranks.all())) &&
                    run.config.parallel.reshard == ReshardPolicy::step;
  const MemoryPlan plan = dry_run(run, hold);
  return plan.arena->total_bytes() + bytes_outside_of_arena(run.config, run.ranks, plan.arena->planned_takes());
}

// Returns the plan of plan_memory() for the fp8 weights and inputs that `run` keeps.
MemoryPlan chosen_plan(const PlannedRun& run, int64_t device_bytes) {
  const Config& config = run.config;
  const GroupSizes& ranks = run.ranks;
  const bool from_host = offloads(config, OffloadedData::parameters);
  if (!cuts_parameters(strategy_of(config, ranks.all())) && !from_host) return dry_run(run, false);
  const auto always = [&] {
    MemoryPlan plan = dry_run(run, false);
    const int64_t limit = device_bytes > 0 ? device_bytes - bytes_outside_of_arena(config, ranks, plan.arena->planned_takes())
                                           : std::numeric_limits<int64_t>::max();
    return with_idle_memory_used(run, limit, std::move(plan));
  };
  if (config.parallel.reshard == ReshardPolicy::always || from_host) return always();
  if (config.parallel.reshard == ReshardPolicy::step) return dry_run(run, true);
  if (device_bytes > 0) {
    MemoryPlan held = dry_run(run, true);
    if (held.arena->total_bytes() + bytes_outside_of_arena(config, ranks, held.arena->planned_takes()) <= device_bytes) return held;
  }
  return always();
}

// Returns the peak of a step's live bytes. No addresses are chosen, so gaps between tensors do not count.
int64_t peak_live_bytes(const PlannedRun& run) { return record_step(run, false, 0).arena->peak_live_bytes(); }

// Quantized inputs may need less memory than the tensors they replace: after relu, and in recomputed layers.
bool inputs_cost_nothing(PlannedRun run) {
  const int64_t without = peak_live_bytes(run);
  run.fp8_keep_inputs = true;
  return peak_live_bytes(run) <= without;
}

// Returns true if the quantized values of all fp8 weights have memory over the step.
bool keeps_all_weights(const MemoryPlan& plan) {
  const auto& matrices = plan.engine->fp8->matrices();
  return std::all_of(matrices.begin(), matrices.end(), [](const auto& entry) {
    return entry.second.choice != Fp8Products::Choice::fp8 || entry.second.transposed;
  });
}

std::string row(const std::string& name, int64_t bytes) {
  std::ostringstream out;
  out << "  " << std::left << std::setw(44) << name << std::right << std::setw(14) << memory_text(bytes) << "\n";
  return out.str();
}

}  // namespace

MemoryPlan empty_plan(const GroupSizes& ranks, StrategyKind strategy) {
  MemoryPlan plan;
  plan.device = make_plan_device();
  plan.arena = std::make_unique<Arena>(*plan.device);
  plan.ops = make_plan_ops();
  plan.all = make_plan_comm(ranks.all());
  plan.shard = make_plan_comm(ranks.shard);
  plan.replicate = make_plan_comm(ranks.replicate);
  plan.ranks = ranks;
  plan.strategy = strategy;
  return plan;
}

int64_t bytes_outside_of_arena(const Config& config, const GroupSizes& ranks, int64_t planned_takes) {
  constexpr int64_t kContext = 570, kCommunicator = 920, kCommunicatorOfScalars = 64;  // MiB
  // A graph has one or two kernels for each tensor that its pass reserves; the driver keeps a few KiB for each kernel.
  constexpr int64_t kGraphBytesOfTake = 8900;
  int64_t mib = kContext + (ranks.shard > 1 ? kCommunicator : 0);
  if (ranks.hybrid()) mib += kCommunicator + kCommunicatorOfScalars;
  return mib * (int64_t{1} << 20) + (config.parallel.cuda_graph ? planned_takes * kGraphBytesOfTake : 0);
}

MemoryPlan record_plan(const Config& config, Model& model, const GroupSizes& ranks, bool hold,
                       std::vector<TextShape> text_shapes) {
  return record_step({config, model, ranks, std::move(text_shapes), nullptr}, hold, 0);
}

void place_plan(const Config& config, const Model& model, MemoryPlan& plan) {
  plan.loading_bytes = config.model.init == InitialWeights::pretrained ? loading_scratch_bytes() : init_scratch_bytes();
  if (config.output.save_model)
    for (const SaveSettings& settings : SaveSettings::of(config))
      plan.saving_bytes = std::max(plan.saving_bytes, saving_scratch_bytes(model.units(), plan.engine->store,
                                                                           *plan.engine->strategy, settings));
  // Weights are loaded while the first collectives run, so both need scratch memory at the same time.
  plan.loading_bytes += plan.engine->program->warm_up_bytes();
  plan.arena->plan(std::max(plan.loading_bytes, plan.saving_bytes));
  // Scratch memory lies behind the transient memory of the peer block, which is not part of it.
  plan.loading_bytes += plan.arena->peer_transient_bytes();
  if (plan.saving_bytes > 0) plan.saving_bytes += plan.arena->peer_transient_bytes();
}

MemoryPlan plan_memory(const Config& config, Model& model, const GroupSizes& ranks, int64_t device_bytes,
                       std::vector<TextShape> text_shapes, const StoragePolicy* policy, const EvaluationWork* evaluation) {
  PlannedRun run{.config = config, .model = model, .ranks = ranks, .text_shapes = std::move(text_shapes),
                 .policy = policy, .evaluation = evaluation, .gpu = device_bytes > 0};
  if (config.train.fp8_keep_weights == Fp8Retention::all) run.fp8_kept_bytes = std::numeric_limits<int64_t>::max();
  const bool requested = config.train.matmul == MatmulType::fp8 && config.train.fp8_keep_inputs == Fp8Retention::automatic && device_bytes > 0;
  run.fp8_keep_inputs = config.train.fp8_keep_inputs == Fp8Retention::all || (requested && inputs_cost_nothing(run));
  MemoryPlan plan = chosen_plan(run, device_bytes);
  if (config.train.matmul != MatmulType::fp8 || device_bytes == 0) return plan;
  const auto room = [&](const MemoryPlan& of) {
    return device_bytes - bytes_outside_of_arena(config, ranks, of.arena->planned_takes()) - of.arena->total_bytes() -
           device_bytes / kShareLeftByQuantized;
  };
  if (config.train.fp8_keep_weights == Fp8Retention::automatic && room(plan) > 0) {
    run.fp8_kept_bytes = room(plan);
    plan = chosen_plan(run, device_bytes);
  }
  if (!requested || run.fp8_keep_inputs || room(plan) <= 0 || !keeps_all_weights(plan)) return plan;
  run.fp8_keep_inputs = true;
  if (peak_live_bytes(run) > device_bytes) return plan;
  MemoryPlan other = chosen_plan(run, device_bytes);
  return room(other) >= 0 ? std::move(other) : std::move(plan);
}

std::unique_ptr<Engine> make_engine(const MemoryPlan& plan, const EngineParts& parts, int32_t pad_id) {
  EngineParts planned = parts;
  planned.fp8_kept_bytes = plan.fp8_kept_bytes;
  planned.fp8_keep_inputs = plan.fp8_keep_inputs;
  auto engine = std::make_unique<Engine>(planned, plan.strategy, plan.sharded);
  if (plan.decoding) engine->decode_with(*plan.decoding, pad_id);
  engine->strategy->learn_from(*plan.engine->strategy);
  return engine;
}

int64_t largest_batch(const Config& config, Model& model, const GroupSizes& ranks,
                      int64_t device_bytes, const TextShapesOf& text_shapes, int64_t maximum, const EvaluationWork* evaluation) {
  const auto fits = [&](int64_t batch) {
    Config other = config;
    other.steps.batch_size = batch;
    other.steps.accumulate_grad_batches = 1;
    other.steps.total_batch_size = 0;
    return min_planned_bytes({.config = other, .model = model, .ranks = ranks, .text_shapes = text_shapes(other),
                                .policy = nullptr, .evaluation = evaluation, .gpu = true}) <= device_bytes;
  };
  if (!fits(1)) return 0;
  int64_t low = 1, high = 2;
  while (high <= maximum && fits(high)) low = high, high *= 2;
  if (high > maximum) {
    if (fits(maximum)) return maximum;
    high = maximum;
  }
  while (high - low > std::max<int64_t>(1, low / 64)) {
    const int64_t middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

std::string max_pixels_text(const Config& config, Model& model, const GroupSizes& ranks, int64_t device_bytes) {
  const auto reader = open_picture_reader(config, model.inputs());
  if (!reader || reader->patches.picture_side > 0) return "";
  const auto fits = [&](int64_t pixels) {
    Config other = config;
    other.data.max_pixels = pixels;
    const PlannedTexts texts(other, model.inputs(), ranks.all());
    return min_planned_bytes({.config = other, .model = model, .ranks = ranks, .text_shapes = texts.shapes(other, ranks.all()),
                              .policy = nullptr, .evaluation = texts.evaluation(), .gpu = true}) <= device_bytes;
  };
  const PatchSettings& patches = reader->processor.patches;
  const int64_t row = patches.patch * patches.merge * patches.patch * patches.merge;
  int64_t minimum = std::max(patches.min_pixels, row), maximum = patches.max_pixels;
  if (!fits(minimum)) return "no data.max_pixels fits";
  while (maximum - minimum > std::max(row, minimum / 16)) {
    const auto middle = static_cast<int64_t>(std::sqrt(static_cast<double>(minimum) * static_cast<double>(maximum)));
    (fits(middle) ? minimum : maximum) = middle;
  }
  return concat("the run fits with data.max_pixels=", std::max(patches.min_pixels, minimum / row * row), " (now ", patches.max_pixels, ")");
}

std::string reshard_name(const MemoryPlan& plan) { return plan.sharded.hold ? "step" : "always"; }

std::string groups_text(const MemoryPlan& plan) {
  const GroupSizes& ranks = plan.ranks;
  const char* plural = ranks.shard == 1 ? " rank" : " ranks";
  if (!ranks.hybrid() || !cuts_parameters(plan.strategy)) return concat(plan.strategy);
  return concat(plan.strategy, ", ", ranks.replicate, " groups of ", ranks.shard, plural);
}

std::string strategy_text(const MemoryPlan& plan) {
  const bool from_host = plan.engine->store.weights_space() == MemorySpace::host;
  return concat(groups_text(plan), cuts_parameters(plan.strategy) ? ", reshard " + reshard_name(plan) : "",
                from_host ? ", parameters from the host" : "");
}

std::string decoding_text(const MemoryPlan& plan) {
  if (!plan.decoding) return "";
  const DecodeProgram& program = *plan.engine->decoder;
  const DecodeProgramSettings& settings = *plan.decoding;
  std::vector<std::string> steps = plan.arena->passes();
  const std::vector<std::string> passes = program.passes();
  std::erase_if(steps, [&](const std::string& pass) { return std::count(passes.begin(), passes.end(), pass) > 0; });
  const int64_t bytes = peak_of_passes(*plan.arena, passes), more = bytes - peak_of_passes(*plan.arena, steps);
  const bool gathers = cuts_parameters(plan.strategy) || plan.engine->store.weights_space() == MemorySpace::host;
  return concat("generation at validations: ", counted(settings.slots / settings.beams, "text"), " of up to ", settings.max_ids,
                " tokens at once", settings.beams > 1 ? concat(", ", settings.beams, " beams each") : "", ", keys and values ",
                memory_text(program.cache_bytes()), ", in all ", memory_text(bytes),
                more > 0 ? concat(", ", memory_text(more), " more than a step takes") : ", where a step's activations lie",
                gathers ? settings.keeps_units ? "; units are gathered once an evaluation" : "; units are gathered for each token"
                        : "");
}

std::string fp8_text(const MemoryPlan& plan, const Model& model) {
  const Fp8Products* fp8 = plan.engine->fp8.get();
  if (!fp8) return "";
  constexpr const char* kReasons[] = {"", " (too small)", " (no multiples of 16)", " (train.matmul_exclude)"};
  std::map<std::string, int64_t> in_fp8, others;
  int64_t bytes = 0, stored = 0;
  for (const Unit* unit : model.units())
    for (const WeightMatrix& matrix : unit->matrices()) {
      const Fp8Products::Matrix& product = fp8->matrices().at({unit->index, matrix.offset});
      const bool uses_fp8 = product.choice == Fp8Products::Choice::fp8;
      ++(uses_fp8 ? in_fp8 : others)[concat(matrix.out, " x ", matrix.in, kReasons[static_cast<int>(product.choice)])];
      bytes += product.bytes;
      if (product.stored) stored += matrix.in * matrix.out;
    }
  const auto list = [](const std::map<std::string, int64_t>& counts) {
    std::string text;
    for (const auto& [shape, count] : counts) text += concat(text.empty() ? "" : ", ", count, " of ", shape);
    return text.empty() ? "none" : text;
  };
  return concat("products in fp8: ", list(in_fp8), "; quantized weights ",
                fp8->kept_bytes() == 0 ? "are made at each use"
                                       : concat("stay over a step for ", memory_text(fp8->kept_bytes()), " of ", memory_text(bytes)),
                plan.fp8_keep_inputs && !in_fp8.empty() ? "; quantized inputs stay for backward" : "",
                stored > 0 ? concat("; stored in fp8 and used as they are: ", memory_text(stored)) : "",
                "\nproducts as train.precision says: ", list(others));
}

namespace {

std::string heading_of(const MemoryPlan& plan) { return concat("memory of a rank at the peak of a step (", groups_text(plan), ")"); }

std::string buffer_row(const PlanEntry& entry) {
  return row(concat(entry.name, " (", owner_name(entry.owner), entry.space == MemorySpace::host ? ", host)" : ")"), entry.bytes);
}

std::string owners_table(const std::string& heading, const Arena& arena, bool owners_too = true) {
  std::map<std::string, int64_t> owners, in_host;
  std::string host_rows;
  for (const PlanEntry& entry : arena.peak_entries()) {
    (entry.space == MemorySpace::host ? in_host : owners)[owner_name(entry.owner)] += entry.bytes;
    if (entry.space == MemorySpace::host) host_rows += buffer_row(entry);
  }
  std::ostringstream out;
  out << heading << "\n";
  for (int i = 0; i < kOwners; ++i) {
    const char* owner = owner_name(static_cast<Owner>(i));
    if (owners_too && owners.count(owner)) out << row(owner, owners[owner]);
  }
  out << row("total", arena.total_bytes());
  if (in_host.empty()) return out.str();
  out << "page-locked host memory of a rank\n";
  for (const auto& [owner, bytes] : in_host) out << row(owner, bytes);
  out << row("total", arena.host_bytes()) << host_rows;
  return out.str();
}

}  // namespace

std::string plan_table(const MemoryPlan& plan) { return memory_table(heading_of(plan), *plan.arena); }

std::string header_table(const MemoryPlan& plan, bool gpu) { return owners_table(heading_of(plan), *plan.arena, gpu); }

std::string memory_table(const std::string& heading, const Arena& arena) {
  std::ostringstream out;
  out << owners_table(heading, arena) << "largest buffers\n";
  int64_t rows = 0;
  for (const PlanEntry& entry : arena.peak_entries())
    if (entry.space != MemorySpace::host && rows++ < 10) out << buffer_row(entry);
  return out.str();
}

}  // namespace blipft
