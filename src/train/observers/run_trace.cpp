// Filling the trace; see run_trace.h.
#include "train/observers/run_trace.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "blipft/version.h"
#include "engine/settings.h"
#include "trace/trace_files.h"

namespace blipft {

namespace {
constexpr int64_t kClockPeriodNs = 100'000'000;  // the device's clock is measured with a sample, but no more often

std::vector<Fp8Record> fp8_records(const StepResult& result) {
  std::vector<Fp8Record> records;
  for (size_t i = 0; i < result.fp8.size(); ++i) {
    const Fp8Found& found = result.fp8[i];
    records.push_back({.step = result.step, .matrix = static_cast<int32_t>(i / kFp8Factors),
                       .factor = static_cast<int32_t>(i % kFp8Factors), .amax = static_cast<double>(found.amax),
                       .elements = found.counts[kFp8Elements], .underflows = found.counts[kFp8Underflows],
                       .not_finite = found.counts[kFp8NotFinite]});
  }
  return records;
}
}  // namespace

std::string RunTrace::path(const Config& config, int64_t part, int64_t rank) {
  return config.output.path + "/" + trace_file_name(part, rank);
}

int64_t RunTrace::next_part(const Config& config, const World& world) {
  int64_t part = 0;
  world.run_agreeing_on_errors([&] {
    if (world.rank() == 0) part = next_trace_part(config.output.path);
  });
  world.broadcast(&part, sizeof part, 0);
  return part;
}

int64_t RunTrace::bytes(const Config& config, const MemoryPlan& plan, int64_t steps, int64_t steps_per_epoch) {
  if (!config.trace.enabled) return 0;
  constexpr int64_t kStep = 88, kSpan = 56, kMemory = 88, kPlan = 168, kFp8 = 48, kStepSample = 24;  // rows, see trace.h
  constexpr int64_t kEmpty = int64_t{256} << 10;                        // tables, names, attributes
  const int64_t spans = config.trace.spans == SpanTracing::none ? 0 : plan.spans->max_spans() + 1;
  const int64_t moments = 4 * config.steps.accumulate_grad_batches + 2;  // approximate number in a step
  const int64_t noted = 2 + steps / std::max<int64_t>(1, config.output.memory_every);
  const Fp8Products* fp8 = plan.engine->fp8.get();
  const int64_t factors = fp8 && config.trace.fp8_every > 0 ? static_cast<int64_t>(fp8->names().size()) * kFp8Factors : 0;
  const int64_t samples = config.trace.samples ? config.steps.batch_size * config.steps.accumulate_grad_batches : 0;
  const int64_t fp8_steps = factors > 0 ? 1 + steps / config.trace.fp8_every : 0;
  const int64_t rows = steps * (kStep + spans * kSpan + samples * kStepSample) + fp8_steps * factors * kFp8 + noted * moments * kOwners * kMemory +
                       static_cast<int64_t>(plan.arena->peak_entries().size()) * kPlan;
  constexpr int64_t kSample = 3080, kText = 1048;                       // rows of generated texts, on rank 0
  const int64_t requested = config.train.val_check_interval, every = requested > 0 ? requested : steps_per_epoch;
  const int64_t validations = (steps / every + 1) / config.evaluate.every + 1;
  const int64_t texts = generates(config) ? config.evaluate.samples * (kSample + validations * kText) : 0;
  return plan.ranks.all() * (kEmpty + rows) + texts;
}

std::unique_ptr<Trace> RunTrace::open() {
  if (!r_.config().trace.enabled) return make_null_trace();
  try {
    return open_trace(path());
  } catch (const UserError& error) {
    fail(error.what(), true);
    return make_null_trace();
  }
}

void RunTrace::fail(const std::string& why, bool may_stop) {
  if (!failure_.empty()) return;
  failure_ = why;
  const bool stop = r_.config().trace.on_error == TraceErrorAction::stop;
  if (stop && may_stop) throw UserError(concat("the trace cannot be written: ", why, " (trace.on_error is stop)"));
  std::fprintf(stderr, "warning: rank %lld on %s: the trace cannot be written: %s%s\n",
               static_cast<long long>(r_.world.rank()), r_.world.host().c_str(), why.c_str(),
               may_stop ? "; the training goes on (trace.on_error: warn)" : "");
}

RunTrace::RunTrace(const TrainingResources& resources, int64_t start_ns, int64_t part)
    : r_(resources), start_ns_(start_ns), part_(part), trace_(open()),
      samples_(samples_of_a_rank(r_.config(), r_.world.size(), r_.world.rank())), clock_(*r_.backend.device) {
  std::vector<std::string> units;
  for (const Unit* unit : r_.model().units()) units.push_back(unit->name());
  const Fp8Products* fp8 = r_.plan.memory.engine->fp8.get();
  trace_->set_names(units, SpanRecorder::phase_names(), fp8 ? fp8->names() : std::vector<std::string>{});
  if (r_.config().trace.enabled && r_.config().trace.samples)
    order_ = make_training_order(r_.config(), r_.world.rank(), r_.world.size(), r_.data.training.dataset->size(),
                                 r_.data.training.epoch_samples);
  note_run();
  note_versions();
  std::vector<PlanRecord> plan;                     // the first record: from here on the file takes only rows
  for (const PlanEntry& entry : r_.arena->peak_entries())
    plan.push_back({entry.name, owner_name(entry.owner), entry.bytes, entry.space == MemorySpace::host});
  trace_->add(plan);
  driver_memory(-1);
  if (r_.world.local_rank() == 0) packages_ = std::make_unique<PackageEnergy>();
  if (r_.config().trace.enabled)
    sampler_ = std::make_unique<DeviceSampler>(*r_.backend.monitor, r_.config().trace.sample_seconds,
                                               [this](const DeviceRecord& record) { sample(record); });
}

void RunTrace::sample(DeviceRecord record) {
  record.time_ns = now_ns();
  {
    const std::lock_guard lock(energy_mutex_);
    if (std::isnan(first_gpu_joules_)) first_gpu_joules_ = record.gpu_joules;
    record.gpu_joules -= first_gpu_joules_;
    if (packages_) record.cpu_joules = packages_->joules();
    newest_ = record;
  }
  trace_->add(record);
  if (record.time_ns - clock_ns_ < kClockPeriodNs) return;
  clock_ns_ = record.time_ns;
  clock_.measure();
}

void RunTrace::note_run() {
  const Config& config = r_.config();
  const World& world = r_.world;
  const Model& model = r_.model();
  const MemoryPlan& plan = r_.plan.memory;
  const auto number = [&](const char* name, auto value) { trace_->set_attribute(name, static_cast<double>(value)); };
  const auto text = [&](const char* name, const std::string& value) { trace_->set_attribute(name, value); };
  number("rank", world.rank());
  number("world_size", world.size());
  note_part(*trace_, part_, r_.run.first_step);
  text("run_id", r_.run.id);
  text("host", world.host());
  text("device", r_.backend.device->name());
  text("communication", r_.backend.groups->groups().all->name());
  text("model", model.description());
  number("parameters", model.parameter_count());
  number("trainable_parameters", model.trainable_parameter_count());
  text("config", to_yaml(config));
  if (!r_.run.changed_keys.empty()) text("changed_keys", r_.run.changed_keys);
  if (!r_.plan.choice.reason.empty()) text("choice", r_.plan.choice.reason);
  if (!r_.plan.choice.timings.empty()) text("choice_timings", r_.plan.choice.timings);
  text("commit", version_commit());
  number("start_unix_ns", start_ns_);
  number("start_seconds", r_.times.seconds());
  for (const auto& [name, seconds] : r_.times.parts()) number(concat("start_", name, "_seconds").c_str(), seconds);
  for (const auto& [name, seconds] : r_.times.background_parts())
    number(concat("start_beside_", name, "_seconds").c_str(), seconds);
  text("strategy", concat(plan.strategy));
  const bool from_host = plan.engine->store.weights_space() == MemorySpace::host;
  if (cuts_parameters(plan.strategy) || from_host) {
    text("reshard", reshard_name(plan));
    number("prefetch_bytes", plan.sharded.prefetch_bytes);
    text("gathers", from_host ? "from the host"
                    : r_.backend.groups->groups().shard->direct_gathers() ? "copies between devices" : "collectives");
    number("shard_ranks", r_.plan.memory.ranks.shard);
    number("gather_group", r_.backend.groups->shard_group());
    number("reduce_scatter_group", r_.backend.groups->shard_group());
    number("all_reduce_group", r_.backend.groups->replicate_group());
  }
  number("flops_per_step", step_flops(config, model, plan.text_shapes.back()));
  number("samples_per_step", samples_);
  number("total_steps", r_.total_steps());
  number("planned_bytes", r_.arena->total_bytes());
  number("planned_total_bytes", planned_bytes());
  number("planned_host_bytes", r_.arena->host_bytes());
  if (const std::string source = r_.backend.monitor->process_bytes_source(); !source.empty())
    text("driver_memory_source", source);
}

void RunTrace::note_versions() {
  trace_->set_attribute("mpi", mpi_version());
  for (const auto& [name, version] : cuda_versions()) trace_->set_attribute(name, version);
}

int64_t RunTrace::now_ns() const { return unix_ns() - start_ns_; }

std::vector<StepSampleRecord> RunTrace::samples_of(int64_t step) const {
  std::vector<StepSampleRecord> records;
  const std::vector<Sampler::Slot> slots = order_->slots(step);
  const auto batch = static_cast<int64_t>(slots.size()) / order_->micro_batches();
  for (int64_t i = 0; i < std::ssize(slots); ++i) {
    const int64_t sample = slots[static_cast<size_t>(i)].sample;
    if (sample < 0) continue;              // an empty slot
    records.push_back({step, static_cast<int32_t>(i / batch), static_cast<int32_t>(i % batch),
                       r_.data.training.dataset->number_of(sample)});
  }
  return records;
}

void RunTrace::step(const StepEvent& event) {
  const auto& [result, epoch, seconds] = event;
  const auto time_of = [this](int64_t device_ns) { return clock_.at(device_ns) - start_ns_; };
  std::vector<SpanRecord> spans;
  if (r_.records_spans()) {
    spans = r_.backend.spans.records(StepProgram::pass_name(result.text), result.step, result.stamps, time_of);
    SpanRecord wait;
    wait.step = result.step;
    wait.phase = static_cast<int32_t>(RankOperation::data);
    wait.stream = 3;  // host
    wait.begin_ns = result.wait_begin_ns - start_ns_;
    wait.end_ns = result.wait_end_ns - start_ns_;
    spans.push_back(wait);
  }
  ++steps_, tokens_ += result.text_tokens;
  StepRecord record;
  record.step = result.step;
  record.epoch = epoch;
  record.loss = result.loss;
  record.lr = result.lr;
  record.grad_norm = result.grad_norm;
  record.samples_per_second = static_cast<double>(samples_) / seconds;
  record.tflops = result.flops / seconds * 1e-12;
  record.begin_ns = time_of(result.begin_ns);
  record.end_ns = time_of(result.end_ns);
  record.data_wait_ns = result.wait_end_ns - result.wait_begin_ns;
  const int64_t every = r_.config().trace.fp8_every;
  if (!result.fp8.empty() && ((every > 0 && result.step % every == 0) || !is_finite(result))) trace_->add(fp8_records(result));
  record.text_tokens = std::lround(result.text.mean_rows(r_.config().steps.batch_size).all());
  if (order_) trace_->add(samples_of(result.step));
  trace_->add(record, spans);
  if (const std::string why = trace_->failure(); !why.empty()) fail(why, true);
}

void RunTrace::note_memory(int64_t step, const std::string& moment, const MemoryUse& use) {
  std::vector<MemoryRecord> records;
  for (int i = 0; i < kOwners; ++i)
    records.push_back({step, moment, owner_name(static_cast<Owner>(i)), now_ns(), use.of(static_cast<Owner>(i))});
  trace_->add(records);
}

void RunTrace::memory(const MemoryEvent& event) {
  const auto& [step, pass, arena, device] = event;
  for (const Arena::PhaseUse& phase : arena.phases(pass)) note_memory(step, phase.phase, phase.now);
  MemoryUse peak = arena.peak(pass);
  peak.by_owner[static_cast<size_t>(Owner::workspace)] += arena.gap_bytes(pass);  // as the plan counts them
  note_memory(step, "peak", peak);
  driver_memory(step);
}

void RunTrace::scratch_memory(int64_t step, const std::string& moment, int64_t bytes) {
  MemoryUse use = r_.arena->persistent_use();
  use.by_owner[static_cast<size_t>(Owner::workspace)] += bytes;
  note_memory(step, moment, use);
}

int64_t RunTrace::planned_bytes() const {
  const bool gpu = r_.backend.device->kind() == DeviceKind::cuda;
  const auto outside = [&] {
    return bytes_outside_of_arena(r_.config(), r_.plan.memory.ranks, r_.plan.memory.arena->planned_takes());
  };
  return r_.arena->total_bytes() + (gpu ? outside() : 0);
}

void RunTrace::driver_memory(int64_t step) {
  DriverMemoryRecord record;
  record.total_bytes = r_.backend.monitor->process_bytes();
  if (record.total_bytes < 0) return;
  measured_bytes_ = std::max(measured_bytes_, record.total_bytes);
  record.step = step;
  record.time_ns = now_ns();
  record.context_bytes = r_.backend.context_bytes;
  record.nccl_bytes = r_.backend.groups->device_bytes();
  record.allocated_bytes = r_.backend.device->memory().process;
  record.unplanned_bytes = record.total_bytes - record.context_bytes - record.nccl_bytes - record.allocated_bytes;
  record.planned_bytes = planned_bytes();
  trace_->add(record);
}

void RunTrace::validation(const ValidationEvent& event) {
  const auto& [step, loss, tokens, seconds] = event;
  trace_->add(ValidationRecord{step, now_ns(), loss, tokens, seconds});
}

void RunTrace::evaluation(const EvaluationEvent& event) {
  const auto& [step, found, seconds] = event;
  if (!std::exchange(samples_written_, true)) {
    std::vector<EvaluationSampleRecord> samples;
    for (const ScoredText& text : found.texts) {
      std::string references;
      for (const std::string& one : text.references) references += concat(references.empty() ? "" : "\n", one);
      samples.push_back({text.index, text.picture, text.prompt, references});
    }
    trace_->add(samples);
  }
  std::vector<EvaluationTextRecord> texts;
  for (size_t i = 0; i < found.texts.size(); ++i)
    texts.push_back({step, found.texts[i].index, found.tokens[i], found.texts[i].candidate});
  trace_->add(texts);
  std::vector<EvaluationRecord> scores;
  for (const Score& score : found.scores)
    scores.push_back({.step = step, .time_ns = now_ns(), .metric = score.metric, .value = score.value,
                      .samples = found.samples, .seconds = seconds});
  trace_->add(scores);
}

void RunTrace::kernels(int64_t step, std::vector<KernelRecord> records) {
  for (KernelRecord& record : records) {
    record.step = step;
    record.begin_ns -= start_ns_;
    record.end_ns -= start_ns_;
  }
  trace_->add(records);
}

std::string RunTrace::energy() {
  if (!sampler_) return "not available (trace.enabled is false)";
  sampler_->sample();
  double gpus = 0, cpus = 0;
  std::string why;
  {
    const std::lock_guard lock(energy_mutex_);
    gpus = newest_.gpu_joules;
    if (packages_) cpus = newest_.cpu_joules, why = packages_->unavailable();
  }
  std::vector<DeviceEnergy> devices;
  gpus = r_.world.sum(gpus), cpus = r_.world.sum(cpus);
  if (r_.backend.device->kind() == DeviceKind::cuda) devices.push_back({"GPUs", gpus, "NVML has no energy counter on all ranks"});
  devices.push_back({"CPUs", cpus, why.empty() ? "not on all machines" : why});
  return energy_text(devices, static_cast<double>(steps_ * samples_ * r_.world.size()), tokens_);
}

void RunTrace::close() {
  sampler_.reset();                        // no sample may be written after the end
  try {
    trace_->close();
  } catch (const std::exception& error) {
    fail(error.what(), false);
  }
}

}  // namespace blipft
