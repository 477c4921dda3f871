// A run, from the config to the saved model.
#include "blipft/trainer.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "blipft/checkpoint.h"
#include "blipft/data.h"
#include "blipft/monitor.h"
#include "blipft/version.h"
#include "data/text_survey.h"
#include "memory/memory_plan.h"
#include "memory/memory_text.h"
#include "run/adapter_files.h"
#include "run/checkpoints.h"
#include "run/end_all.h"
#include "run/engine.h"
#include "run/output_folder.h"
#include "run/placement.h"
#include "run/progress.h"
#include "run/resume.h"
#include "run/run_data.h"
#include "run/run_faults.h"
#include "run/same_run.h"
#include "run/saving.h"
#include "run/start_times.h"
#include "run/training_state.h"
#include "trace/run_trace.h"

namespace blipft {

namespace {

// Text shapes whose steps are captured before training, at most, and samples that are looked at to find them.
constexpr size_t kMostPrepared = 8;
constexpr int64_t kSamplesLookedAt = 512;

// The recorder of kernels that trace.kernels asks for, null when it asks for none.
std::unique_ptr<KernelTracer> make_tracer(const Config& config, const Device& device) {
  if (config.trace.kernels.empty()) return nullptr;
  const std::string place = place_of(config, "trace.kernels");
  BLIPFT_USER_CHECK(device.kind() == DeviceKind::cuda, place,
                    ": trace.kernels: kernels are recorded on GPUs, this run computes on ", device.name(),
                    "; remove trace.kernels");
  try {
    return make_kernel_tracer();
  } catch (const UserError& error) {
    throw UserError(concat(place, ": trace.kernels: ", error.what(), "; or remove trace.kernels"));
  }
}

// A run in the order in which its parts come to life; destroyed in reverse.
class Run {
 public:
  Run(const Config& config, const World& world, Watchdog& watchdog)
      : config_(config), world_(world), faults_(config_, world, watchdog) {}
  void prepare();
  void steps();
  void finish();
  bool stopped() const { return !stop_reason_.empty(); }
  void close_trace();

 private:
  void go_on_from_checkpoint();
  std::map<std::string, std::string> facts() const;
  void open_data();
  void start_loader();
  void make_backend();
  int64_t least_free_memory() const;
  void commit();
  WeightContext weight_context() const;
  std::vector<TextShape> shapes_to_prepare();
  void fill_weights();
  void restore();
  void start_trace(int64_t start_ns, int64_t part);
  void announce();
  double step_seconds(const StepResult& result);
  void finished_step(const StepResult& result);
  void drain();
  void check_targets(int64_t steps);
  bool validates_after(int64_t step) const;
  void validate(int64_t step);
  void start_checkpoints();
  bool checkpoint_and_stop(int64_t done);
  void tell_checkpoint();
  void start_kernels();
  void stop_kernels(int64_t step);
  void print_memory() const;
  void print_end(long long lost) const;
  std::vector<FileToWrite> files_to_write() const;
  bool first() const { return world_.rank() == 0; }

  Config config_;                          // resolved for this world, once prepare() has begun
  const World& world_;
  StartTimes times_;
  std::unique_ptr<ResumePoint> resume_;    // where the run goes on from, if anywhere
  int64_t first_step_ = 0;
  Facts read_;                             // what the run reads; on rank 0
  std::string gemm_table_;                 // file of chosen algorithms of products, on GPUs
  std::unique_ptr<OutputFolder> folder_;
  std::unique_ptr<Model> model_;
  RunData data_;
  std::unique_ptr<DeviceMonitor> monitor_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<KernelTracer> kernels_;  // only when the run asks for kernels
  int64_t context_bytes_ = 0;
  std::unique_ptr<Ops> ops_;
  GroupSizes group_sizes_{1};
  std::unique_ptr<CommGroups> groups_;
  std::unique_ptr<Optimizer> optimizer_;
  SpanRecorder span_recorder_;
  SpanRecorder* spans_ = nullptr;
  MemoryPlan plan_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<SafetensorsReader> checkpoint_;  // kept while the run is to save what it does not train
  std::unique_ptr<RunTrace> trace_;
  std::unique_ptr<DataLoader> loader_, validation_loader_;  // the latter where the run validates
  std::vector<TextShape> first_shapes_;    // of this rank's first steps
  std::unique_ptr<Beside> looking_ahead_;  // finds them; only where steps are captured
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<Checkpoints> checkpoints_;
  int64_t done_ = 0;                       // steps, those before a resume counted
  std::string stop_reason_;                // why the run ended before its last step; "": it did not
  double step_seconds_ = 0;                // of the last finished step
  double ready_seconds_ = 0;               // since the process began
  int64_t texts_without_target_ = 0;       // of this rank's samples so far
  int64_t texts_cut_ = 0;
  int64_t last_end_ns_ = 0;                // of the step before, on the device's clock; 0: there is none to count from
  double train_seconds_ = 0;
  std::vector<std::string> saved_;         // folders
  RunFaults faults_;                       // last: its watchdog's check asks the communicators above
};

void Run::prepare() {
  check_same_start(config_, world_);
  resume_ = find_resume_point(config_, world_);
  folder_ = std::make_unique<OutputFolder>(config_, world_, resume_ != nullptr);
  const int64_t node_ranks = ranks_of_each_machine(world_);
  world_.together([&] {
    check_ranks(config_, world_.size());
    config_ = resolve_for_ranks(config_, world_.size());
  });
  go_on_from_checkpoint();
  world_.together([&] {
    group_sizes_ = group_sizes(config_, world_.size(), node_ranks);
    check_device(config_, world_);
    model_ = make_model(config_);
  });
  times_.part("model");
  world_.together([&] {
    Beside data(times_, "data", [this] { open_data(); });
    make_backend();
    times_.part("device");
    data.wait();
    start_loader();
  });
  check_same_data(config_, data_, world_);
  world_.together([&] {
    if (!first()) return;                    // the others have the same
    read_ = read_facts(config_, data_);
    if (resume_) check_same_content(config_, *resume_, read_);
  });
  times_.part("data");
  // No collective runs inside of together(): a rank that fails would leave the others waiting in it.
  const int64_t available = least_free_memory();
  Beside plan(times_, "plan", [this, available] {
    plan_ = plan_memory(config_, *model_, group_sizes_, available, data_.text_shapes);
  });
  groups_ = make_groups(config_, world_, group_sizes_, *device_);
  faults_.watch(*groups_);
  times_.part("communication");
  world_.together([&] {
    plan.wait();
    times_.part("plan");
    commit();
  });
  times_.part("memory");
  const bool gathers = config_.parallel.direct_gathers && engine_->store.shards() > 1;
  groups_->expose(arena_->block(), gathers, config_.parallel.direct_reductions);
  world_.together([&] { engine_->bind(); });
  times_.part("peers");
  folder_->check_room([this] { return files_to_write(); });
  fill_weights();
  int64_t start_ns = unix_ns();            // where the trace's time begins, on every rank
  world_.broadcast(&start_ns, sizeof start_ns, 0);
  folder_->remove_earlier();
  const int64_t part = resume_ && config_.trace.enabled ? RunTrace::next_part(config_, world_) : 0;
  world_.together([&] { start_trace(start_ns, part); });
  announce();
}

std::vector<FileToWrite> Run::files_to_write() const {
  std::vector<FileToWrite> files = files_to_save(config_, model_->units(), engine_->store);
  files.push_back({"trace", RunTrace::bytes(config_, plan_, loader_->total_steps()), config_.output.path,
                   config_.trace.on_error == "stop"});
  if (writes_checkpoints(config_))         // those that are kept, and one on its way
    files.push_back({"checkpoints", (config_.checkpoint.keep + 1) * checkpoint_bytes(model_->units(), engine_->store),
                     checkpoints_folder(config_)});
  return files;
}

// What the run goes on from says where it begins, and what was chosen for it where the run file leaves the choice.
void Run::go_on_from_checkpoint() {
  if (!resume_) return;
  first_step_ = done_ = resume_->index.step;
  world_.together([&] {
    check_same_run(config_, *resume_, world_.size());
    const std::string table = resume_->folder + "/gemm_algorithms.txt";
    if (!std::filesystem::exists(table)) return;
    gemm_table_ = checkpoints_folder(config_) + "/gemm_algorithms.txt";
    if (!first()) return;
    std::filesystem::create_directories(checkpoints_folder(config_));
    std::filesystem::copy_file(table, gemm_table_, std::filesystem::copy_options::overwrite_existing);
  });
  const auto then = [&](const char* name) { return resume_->index.run[name]; };
  if (config_.parallel.reshard == "auto" && then("ranks") == std::to_string(world_.size()) &&
      config_.parallel.strategy == "fsdp" && !then("reshard").empty())
    config_.parallel.reshard = then("reshard");
}

std::map<std::string, std::string> Run::facts() const {
  std::map<std::string, std::string> facts{
      {"ranks", std::to_string(world_.size())},
      {"strategy", groups_text(plan_)},
      {"device", concat(device_->name(), " ", device_->code())},
      {"version", version_commit()},
      {"batch_size", std::to_string(config_.train.batch_size)},
      {"samples_of_a_step", std::to_string(samples_of_a_step(config_, world_.size()))}};
  if (plan_.strategy_name == "fsdp") facts["reshard"] = reshard_name(plan_);
  return facts;
}

void Run::open_data() {
  data_ = open_run_data(config_, model_->inputs(), world_.size(),
                        std::max(config_.data.num_workers, cores_of_a_rank(world_)));
}

// Its threads prepare the first steps beside all that comes before them.
void Run::start_loader() {
  loader_ = make_data_loader(config_, world_.rank(), world_.size(), model_->inputs(), data_.text_shapes,
                             data_.tokenizer, data_.training, *device_, first_step_);
  BLIPFT_USER_CHECK(first_step_ <= loader_->total_steps(), resume_->folder, ": the checkpoint was written after ",
                    first_step_, " steps, but the run has ", loader_->total_steps(),
                    " in all; raise train.max_steps or train.max_epochs to go on");
  if (data_.validates())
    validation_loader_ = make_validation_loader(config_, world_.rank(), world_.size(), model_->inputs(),
                                                data_.text_shapes, data_.tokenizer, data_.validation, *device_);
  if (config_.parallel.cuda_graph && !data_.surveyed())
    looking_ahead_ = std::make_unique<Beside>(
        times_, "looking_ahead", [this] { first_shapes_ = loader_->first_text_shapes(kSamplesLookedAt); });
}

void Run::make_backend() {
  monitor_ = make_device_monitor(wants_cuda(config_) ? static_cast<int>(world_.local_rank()) : -1);
  device_ = make_device(config_, world_);
  device_->bind_thread();
  kernels_ = make_tracer(config_, *device_);
  const char* home = std::getenv("HOME");
  if (gemm_table_.empty() && home) gemm_table_ = std::string(home) + "/.cache/blipft/gemm_algorithms.txt";
  ops_ = device_->kind() == DeviceKind::cuda
             ? make_cuda_ops(*device_, gemm_table_,
                             {config_.parallel.gemm_search == "thorough", config_.train.matmul_precision == "high"})
             : make_cpu_ops();
  optimizer_ = make_optimizer(config_.train);
  context_bytes_ = std::max<int64_t>(0, monitor_->process_bytes());
}

// Of all ranks' GPUs, because the choice that hangs on it must be the same on every rank; 0 on CPUs.
int64_t Run::least_free_memory() const {
  return device_->kind() == DeviceKind::cuda ? -world_.max(-device_->memory().free) : 0;
}

void Run::commit() {
  arena_ = std::make_unique<Arena>(*device_, *plan_.arena);
  if (config_.trace.enabled && config_.trace.spans != "none") spans_ = &span_recorder_;
  engine_ = std::make_unique<Engine>(
      EngineParts{&config_, model_.get(), device_.get(), ops_.get(), groups_->groups(), arena_.get(), optimizer_.get(),
                  nullptr, spans_, data_.pixel_statistics, plan_.text_shapes, &faults_.activity()},
      plan_.strategy_name, plan_.sharded);
  engine_->strategy->learn_from(*plan_.engine->strategy);
  arena_->commit();
}

WeightContext Run::weight_context() const {
  return {model_->units(), &engine_->store, engine_->strategy.get(), device_.get(), ops_.get(), arena_->scratch()};
}

// Where all texts are known, all that steps have. Else those that any rank's first steps have, the most frequent first;
// the same on every rank.
std::vector<TextShape> Run::shapes_to_prepare() {
  if (data_.surveyed()) return plan_.text_shapes;
  if (!looking_ahead_) return {};
  looking_ahead_->wait();
  std::vector<std::pair<double, TextShape>> counted;
  for (const TextShape& shape : plan_.text_shapes) {
    const auto mine = std::count(first_shapes_.begin(), first_shapes_.end(), shape);
    if (const double all = world_.sum(static_cast<double>(mine)); all > 0) counted.push_back({all, shape});
  }
  std::stable_sort(counted.begin(), counted.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<TextShape> shapes;
  for (size_t i = 0; i < counted.size() && i < kMostPrepared; ++i) shapes.push_back(counted[i].second);
  return shapes;
}

// What was trained before: from a checkpoint of this run, or adapters of another.
void Run::restore() {
  if (resume_) restore_state(weight_context(), resume_->index, resume_->folder, 4);
  else load_adapters(weight_context(), config_);
}

// A checkpoint is read on other threads, while steps are captured on this one: that runs nothing on the device.
void Run::fill_weights() {
  const std::vector<TextShape> shapes = shapes_to_prepare();
  const WeightContext context = weight_context();
  const bool random = config_.model.init == "random";
  engine_->program->warm_up(context.scratch);
  times_.part("connections");
  world_.together([&] {
    init_weights(context, static_cast<uint64_t>(config_.train.seed), random ? Filled::all : Filled::fresh);
    if (random) {
      restore();
      times_.part("weights");
      engine_->program->prepare(shapes);
      times_.part("graphs");
      return;
    }
    Beside reading(times_, "reading", [&] {
      checkpoint_ = std::make_unique<SafetensorsReader>(config_.model.path);
      check_weights(model_->units(), *checkpoint_);
      load_weights(resume_ ? frozen_of(context) : context, *checkpoint_, 8);
      restore();
    });
    engine_->program->prepare(shapes);
    times_.part("graphs");
    reading.wait();
    if (!config_.output.save_model) checkpoint_.reset();
    times_.part("weights");
  });
  world_.together([&] { engine_->program->settle(); });
  times_.part("products");
}

void Run::start_trace(int64_t start_ns, int64_t part) {
  faults_.folder_made();
  trace_ = std::make_unique<RunTrace>(TraceParts{&config_, &world_, device_.get(), groups_.get(), model_.get(),
                                                 arena_.get(), &plan_, spans_, monitor_.get(), loader_->total_steps(),
                                                 context_bytes_, start_ns, &times_, part, first_step_});
  if (plan_.loading_bytes > 0) trace_->scratch_memory(-1, "loading", plan_.loading_bytes);
}

void Run::announce() {
  Progress::Run run;
  run.total_steps = loader_->total_steps();
  run.first_step = first_step_;
  run.steps_per_epoch = loader_->steps_per_epoch();
  const int64_t micro = config_.train.accumulate_grad_batches, batch = config_.train.batch_size;
  run.samples_per_step = batch * micro * world_.size();
  run.memory_bytes = arena_->total_bytes();
  progress_ = std::make_unique<Progress>(config_, run, !first());
  times_.part("trace");
  ready_seconds_ = times_.seconds();
  if (!first()) return;
  const std::string code = device_->code();
  print_header(config_, *model_, concat(world_.size(), " rank(s), ", groups_text(plan_), ", ",
                                        groups_->groups().all->name()),
               concat(device_->name(), code.empty() ? "" : ", ", code), times_.text(), plan_table(plan_));
  std::printf("data       %lld samples in %s, %lld steps an epoch, %lld steps in all\n",
              static_cast<long long>(data_.training.dataset->size()), config_.data.path.c_str(),
              static_cast<long long>(run.steps_per_epoch), static_cast<long long>(run.total_steps));
  if (writes_checkpoints(config_))
    std::printf("checkpoint %s\n", checkpoints_text(config_, model_->units(), engine_->store, world_.size(),
                                                   world_.local_size()).c_str());
  if (resume_) {
    const std::string changes = what_may_change_bits(*resume_, facts());
    std::printf("resume     after %lld steps, from %s%s%s\n", static_cast<long long>(first_step_),
                resume_->folder.c_str(),
                changes.empty() ? "" : "; rounding may differ from a run that was never stopped: ", changes.c_str());
  }
  if (data_.validates())
    std::printf("validation %lld samples%s%s\n", static_cast<long long>(data_.validation.dataset->size()),
                data_.surveyed() ? ": " : "",
                data_.surveyed() ? survey_text(config_, *data_.validation.texts).c_str() : "");
  if (config_.train.matmul_precision == "high" &&
      (config_.train.precision != Precision::f32_true || device_->kind() != DeviceKind::cuda))
    std::printf("note       train.matmul_precision high has no effect: only 32-true on GPUs has TF32 products\n");
  if (data_.surveyed())
    std::printf("texts      %s; %s\n", survey_text(config_, *data_.training.texts).c_str(),
                text_shapes_text(plan_.text_shapes).c_str());
  std::fflush(stdout);
}

// From the end of the step before, on the device's clock: the host may see several steps finish at once.
double Run::step_seconds(const StepResult& result) {
  const int64_t from = last_end_ns_ > 0 ? last_end_ns_ : result.begin_ns;
  last_end_ns_ = result.end_ns;
  return step_seconds_ = static_cast<double>(std::max<int64_t>(1, result.end_ns - from)) * 1e-9;
}

void Run::finished_step(const StepResult& result) {
  const double seconds = step_seconds(result);
  const int64_t epoch = result.step / loader_->steps_per_epoch();
  progress_->step(result, epoch, seconds);
  trace_->step(result, epoch, seconds);
  faults_.finished(result, *progress_);
  const bool memory =
      result.step <= 1 || (config_.output.memory_every > 0 && result.step % config_.output.memory_every == 0);
  if (memory) {
    const std::string pass = StepProgram::pass_name(result.text);
    progress_->memory(result.step, arena_->phases(pass), device_->memory().process);
    trace_->memory(result.step, pass);
    trace_->driver_memory(result.step);
  }
}

void Run::drain() {
  StepResult result;
  while (engine_->program->finished(true, result)) finished_step(result);
}

// After `steps` steps, the first epoch's or all there are. Some captions may be empty: their samples add nothing to the
// loss, and a step of nothing else has loss 0 and no gradient. When all are empty, the run would teach nothing.
void Run::check_targets(int64_t steps) {
  const int64_t samples = steps * config_.train.accumulate_grad_batches * config_.train.batch_size * world_.size();
  const auto empty = static_cast<int64_t>(world_.sum(static_cast<double>(texts_without_target_)));
  const auto cut = static_cast<int64_t>(world_.sum(static_cast<double>(texts_cut_)));
  if (cut > 0)
    progress_->warn(concat(cut, " of ", samples, " texts have more than ", config_.data.max_text_tokens,
                           " tokens (data.max_text_tokens) and are cut"));
  if (empty == 0) return;
  world_.together([&] {
    BLIPFT_USER_CHECK(empty < samples, place_of(config_, "data.path"), ": data.path: ", config_.data.path,
                      ": the captions of all ", samples, " samples of ", steps, " step(s) are empty, so there was",
                      " nothing to learn; look at the captions, and at data.num_train_samples where it takes only the",
                      " first ones");
  });
  progress_->warn(concat(empty, " of ", samples, " samples have an empty caption, and nothing to learn"));
}

// A step whose kernels are recorded has the device for itself: neither the step before it nor the one after it overlaps
// with it, and what recording costs outside of the step is not counted as its time.
void Run::start_kernels() {
  drain();
  device_->synchronize();
  kernels_->start();
  world_.barrier();                        // or the first rank's collectives would show the others' start
  last_end_ns_ = 0;
}

void Run::stop_kernels(int64_t step) {
  drain();
  device_->synchronize();
  trace_->kernels(step, kernels_->stop());
  if (kernels_->lost() > 0)
    std::fprintf(
        stderr, "warning: rank %lld: CUPTI gave %lld kernels of step %lld no times; they are missing in the trace\n",
        static_cast<long long>(world_.rank()), static_cast<long long>(kernels_->lost()), static_cast<long long>(step));
  last_end_ns_ = 0;
}

bool Run::validates_after(int64_t step) const {
  if (!validation_loader_) return false;
  const int64_t asked = config_.train.val_check_interval, every = asked > 0 ? asked : loader_->steps_per_epoch();
  return (step + 1) % every == 0 || step + 1 == loader_->total_steps();
}

// Each rank takes its part of the samples; the sums over ranks are made by the host, so that an evaluation has no
// collectives but those that gather units.
void Run::validate(int64_t step) {
  drain();
  faults_.activity().phase(Activity::Phase::validation);
  const auto start = StartTimes::Clock::now();
  const bool tokens_count = config_.train.loss_normalization == "tokens";
  double loss = 0, weight = 0, tokens = 0;
  StepProgram& program = *engine_->program;
  StepResult result;
  const auto add = [&] {
    const double own = tokens_count ? result.labels : static_cast<double>(result.labels > 0);
    if (own > 0) loss += own * result.loss;
    weight += own;
    tokens += result.labels;
  };
  for (int64_t i = 0; i < validation_loader_->steps_per_epoch(); ++i) {
    const HostBatch* batch = faults_.next(*validation_loader_, step);
    if (program.in_flight() == StepProgram::kSlots && program.finished(true, result)) add();
    program.launch_evaluation(*batch);
    program.batch_taken(true);
    validation_loader_->give_back(batch);
  }
  while (program.finished(true, result)) add();
  loss = world_.sum(loss) / world_.sum(weight);  // NaN where nothing was to be learnt
  const auto learnt = static_cast<int64_t>(world_.sum(tokens));
  const double seconds = seconds_since(start);
  progress_->validation(step, loss, learnt, seconds);
  trace_->validation(step, loss, learnt, seconds);
  last_end_ns_ = 0;                        // the next step is not to count this as its own time
}

void Run::start_checkpoints() {
  CheckpointParts parts{&config_, &world_, &times_, weight_context(), facts(), ""};
  for (const Fact& fact : read_) parts.run[fact.name] = fact.value;
  if (device_->kind() == DeviceKind::cuda) parts.gemm_table = gemm_table_;
  checkpoints_ = std::make_unique<Checkpoints>(std::move(parts));
}

// After `done` steps. Whether the run is to end here.
bool Run::checkpoint_and_stop(int64_t done) {
  done_ = done;
  const bool last = done == loader_->total_steps();
  const bool due = checkpoints_->due(done, step_seconds_);
  if (due || (last && writes_checkpoints(config_))) {
    drain();
    faults_.activity().phase(Activity::Phase::saving);
    checkpoints_->write(done);
    last_end_ns_ = 0;
  }
  if (!last) stop_reason_ = checkpoints_->stop_reason();
  if (last || stopped()) {
    faults_.activity().phase(Activity::Phase::saving);
    checkpoints_->finish();
  }
  tell_checkpoint();
  return stopped();
}

void Run::tell_checkpoint() {
  Checkpoints::Outcome outcome;
  while (checkpoints_->outcome(outcome)) {
    if (!outcome.failure.empty()) progress_->warn(outcome.failure);
    else progress_->checkpoint(outcome);
  }
}

void Run::steps() {
  start_checkpoints();
  world_.barrier();
  const auto start = StartTimes::Clock::now();
  StepProgram& program = *engine_->program;
  StepResult result;
  for (int64_t step = first_step_; step < loader_->total_steps(); ++step) {
    const int64_t wait_begin = unix_ns();
    const HostBatch* batch = faults_.next(*loader_, step);
    const int64_t wait_end = unix_ns();
    const std::vector<int64_t>& chosen = config_.trace.kernels;
    const bool recorded = kernels_ && std::find(chosen.begin(), chosen.end(), step) != chosen.end();
    if (recorded) start_kernels();
    if (program.in_flight() == StepProgram::kSlots && program.finished(true, result)) finished_step(result);
    program.launch(*batch, learning_rate(config_.train, step, loader_->total_steps()), wait_begin, wait_end);
    // On a GPU the copy takes a moment that the loop would otherwise spend waiting for the step itself.
    program.batch_taken(true);
    texts_without_target_ += batch->texts_without_target;
    texts_cut_ += batch->texts_cut;
    loader_->give_back(batch);
    if (recorded) stop_kernels(step);
    while (program.finished(false, result)) finished_step(result);
    if (step + 1 == std::min(loader_->steps_per_epoch(), loader_->total_steps())) check_targets(step + 1 - first_step_);
    if (validates_after(step)) validate(step);
    if (checkpoint_and_stop(step + 1)) break;
  }
  drain();
  world_.barrier();
  train_seconds_ = seconds_since(start);
}

// What was predicted for a rank's device, and the most that the driver has reported for any.
void Run::print_memory() const {
  const int64_t measured = world_.max(trace_->measured_bytes()), planned = trace_->planned_bytes();
  if (!first() || measured == 0) return;
  std::printf("memory: planned %s, measured %s (difference %+.1f %%)\n", memory_text(planned).c_str(),
              memory_text(measured).c_str(), 100 * (static_cast<double>(measured) / static_cast<double>(planned) - 1));
}

void Run::finish() {
  progress_->done(world_.max(train_seconds_), arena_->total_bytes());
  trace_->driver_memory(loader_->total_steps() - 1);
  print_memory();
  faults_.before_saving(done_, *progress_);
  if (config_.output.save_model && !stopped()) {
    for (const SaveSettings& settings : SaveSettings::of(config_)) {
      saved_.push_back(config_.output.path + "/" + settings.folder());
      save_weights(weight_context(), world_, {saved_.back(), config_.model.path, settings, checkpoint_.get(),
                                              adapter_config(config_, model_->units())});
    }
    trace_->scratch_memory(loader_->total_steps() - 1, "saving", plan_.saving_bytes);
  }
  trace_->close();
  const auto lost = static_cast<long long>(world_.sum(trace_->failure().empty() ? 0.0 : 1.0));
  faults_.stop_watching();
  groups_->withdraw();
  if (first()) print_end(lost);
  faults_.after_saving(saved_);
  if (lost > 0 && config_.trace.on_error == "stop")
    throw AgreedError(concat("the traces of ", lost, " rank(s) are not whole (trace.on_error is stop)"));
}

void Run::print_end(long long lost) const {
  const std::string traces = trace_->path();
  if (config_.trace.enabled && lost == 0) std::printf("trace      %s (one file a rank)\n", traces.c_str());
  if (lost > 0) std::printf("trace      %s (one file a rank; not whole: those of %lld ranks)\n", traces.c_str(), lost);
  for (const std::string& saved : saved_) std::printf("model      %s\n", saved.c_str());
  if (!checkpoints_->newest().empty()) std::printf("checkpoint %s\n", checkpoints_->newest().c_str());
  if (stopped())
    std::printf("stopped    by %s; checkpoint.resume=auto goes on from that checkpoint\n", stop_reason_.c_str());
  const double total = times_.seconds();
  std::printf("total      %.1f s from start to end (start %.1f s, training %.1f s, end %.1f s)\n", total, ready_seconds_,
              train_seconds_, total - ready_seconds_ - train_seconds_);
  std::fflush(stdout);
}

void Run::close_trace() {
  if (trace_) trace_->close();
}

}  // namespace

int train(const Config& config, const World& world) {
  Watchdog watchdog(world, config.parallel.timeout_seconds);
  Run run(config, world, watchdog);
  try {
    run.prepare();
    run.steps();
    run.finish();
    return run.stopped() ? kStoppedCode : 0;
  } catch (const AgreedError&) {
    throw;
  } catch (const std::exception& error) {
    end_all_ranks(error, world, watchdog, [&] { run.close_trace(); });
  }
}

}  // namespace blipft
