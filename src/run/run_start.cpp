// The start of a run, up to its first step; see run.h.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "blipft/version.h"
#include "checkpoint/training_state.h"
#include "loading/text_survey.h"
#include "engine/placement.h"
#include "engine/settings.h"
#include "run/run.h"
#include "weights/adapter_files.h"
#include "weights/own_head.h"

namespace blipft {

namespace {

// Text shapes whose steps are captured before training, at most, and samples that are looked at to find them.
constexpr size_t kMostPrepared = 8;
constexpr int64_t kSamplesLookedAt = 512;
// Of tests: on CPUs too, settings between which estimates do not decide are timed.
constexpr const char* kTimesOnCpu = "BLIPFT_TIME_CHOICE_ON_CPU";

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

// What there is to learn, and what of it is not.
std::string data_text(const Config& config, const RunData& data, const Progress::Run& run) {
  const int64_t learnt = data.training.dataset->size();
  const int64_t held_out = config.data.val_split_fraction > 0 ? data.validation.dataset->size() : 0;
  std::string text = concat(counted(learnt + held_out, "sample"), " in ", config.data.path);
  if (held_out > 0) text += concat(": ", learnt, " to learn, ", held_out, " for validation");
  text += concat(", ", counted(run.steps_per_epoch, "step"), " an epoch");
  const int64_t epoch = config.data.num_train_samples > 0 ? config.data.num_train_samples : learnt;
  const int64_t left = epoch - run.steps_per_epoch * run.samples_per_step;
  if (left > 0 && config.train.limit_train_batches == 1)
    text += concat(" (", left, " of its samples fill no step)");
  text += concat(", ", counted(run.total_steps, "step"), " in all");
  if (config.train.max_epochs < 0)
    text += concat(" (", std::round(10.0 * static_cast<double>(run.total_steps) / static_cast<double>(run.steps_per_epoch)) / 10,
                   " epochs)");
  return text;
}

// How a step's samples are cut into micro-batches; `choice`: where the program has chosen.
std::string batch_text(const Config& config, const std::string& choice, int64_t ranks) {
  if (!choice.empty()) return "auto       " + choice;
  const int64_t micro_batches = config.train.accumulate_grad_batches;
  return concat("batch      ", counted(config.train.batch_size, "sample"), " x ", micro_batches, " micro-batch",
                micro_batches == 1 ? "" : "es", " a rank, ", samples_of_a_step(config, ranks), " a step");
}

std::string validation_text(const Config& config, const RunData& data) {
  const int64_t samples = data.validation.dataset->size();
  const std::string texts = data.surveyed() ? survey_text(config, *data.validation.texts) : "";
  return concat(samples, " samples", texts.empty() || texts == concat(samples, " texts") ? "" : concat(": ", texts));
}

}  // namespace

// output.path, which is another one in a trial, and the folder of the checkpoints; then what the run goes on from. False: all
// of it is done.
bool Run::claim_folders() {
  world_.together([&] {                    // before anything is made: what cannot be looked at is told
    if (first() && config_.checkpoint.resume == ResumeMode::automatic) newest_checkpoint(checkpoints_folder(config_));
  });
  if (config_.smoke_steps > 0) {
    smoke_ = std::make_unique<SmokeFolder>(config_, world_);
    config_.output.path = smoke_->path();
  }
  folder_ = std::make_unique<OutputFolder>(config_, world_);
  faults_.unlock_at_end([this, unlock = folder_->unlock()] {
    unlock();
    if (smoke_) smoke_->remove();
  });
  if (const std::string ended = ended_text(config_, world_); !ended.empty()) {
    if (first()) std::printf("%s\n", ended.c_str());
    return false;
  }
  resume_ = find_resume_point(config_, world_);  // the run that held the folder until now may have written another one
  run_id_ = agree_on_run_id(world_, resume_ ? run_id_of(resume_->index.run) : "");
  folder_->claim(resume_ ? resume_->folder : "");
  return true;
}

void Run::begin_to_check_data() {
  check_same_data(config_, data_, world_);
  world_.together([&] {
    if (!first()) return;                  // the others have the same
    read_ = read_facts(config_, data_);
    if (!resume_) return;
    const std::string other = check_same_content(config_, *resume_, read_);
    changed_ += concat(other.empty() || changed_.empty() ? "" : ", ", other);
  });
  contents_ = std::make_unique<ContentCheck>(config_, world_, resume_.get(), std::min<int64_t>(4, cores_of_a_rank(world_)));
  contents_->begin_data(data_);
}

void Run::start_records() {
  int64_t start_ns = unix_ns();            // where the trace's time begins, on every rank
  world_.broadcast(&start_ns, sizeof start_ns, 0);
  folder_->remove_earlier();
  const int64_t part = resume_ && config_.trace.enabled ? RunTrace::next_part(config_, world_) : 0;
  world_.together([&] { start_trace(start_ns, part); });
  world_.together([&] {                    // once no rank's trace can refuse the run
    if (first()) start_record(part);
  });
}

bool Run::prepare() {
  check_same_files(config_, world_);
  if (!claim_folders()) return false;
  const int64_t node_ranks = ranks_of_each_machine(world_);
  world_.together([&] { check_ranks(config_, world_.size()), config_ = resolve_for_ranks(config_, world_.size()); });
  if (chooses_batch_size(config_)) {
    asked_ = std::make_unique<Config>(config_);
    config_ = before_choice(config_, world_.size());
  }
  go_on_from_checkpoint();
  world_.together([&] {
    group_sizes_ = group_sizes(config_, world_.size(), node_ranks);
    check_device(config_, world_);
    model_ = make_model(config_);
    check_saved_parts(config_);
    if (!resume_) check_adapters(config_, model_->units());  // here already: the model itself takes its time to be read
  });
  times_.part("model");
  world_.together([&] {
    Beside data(times_, "data", [this] { open_data(); });
    make_backend();
    times_.part("device");
    data.wait();
  });
  const int64_t available = least_free_memory();  // before communicators take theirs, which the plan knows of
  choose_settings(node_ranks, available);
  world_.together([&] { start_loader(); });
  begin_to_check_data();
  times_.part("data");
  // No collective runs inside of together(): a rank that fails would leave the others waiting in it.
  Beside plan(times_, "plan", [this, available] {
    const PlannedTexts texts(config_, model_->inputs(), data_, prompts_.get());
    plan_ = plan_memory(config_, *model_, group_sizes_, available, data_.text_shapes, nullptr, texts.evaluation());
  });
  connect();
  times_.part("communication");
  world_.together([&] {
    plan.wait();
    times_.part("plan");
    commit();
  });
  times_.part("memory");
  expose_memory(config_, *groups_, *arena_, engine_->store);
  world_.together([&] { engine_->bind(); });
  times_.part("peers");
  start_answers();
  folder_->check_names(first_step_, loader_->total_steps());
  folder_->check_room([this] { return files_to_write(); });
  fill_weights();
  start_records();
  announce();
  return true;
}

std::vector<FileToWrite> Run::files_to_write() const {
  std::vector<FileToWrite> files = files_to_save(config_, model_->units(), engine_->store);
  files.push_back({"trace", RunTrace::bytes(config_, plan_, loader_->total_steps() - first_step_,
                                                 loader_->steps_per_epoch()), config_.output.path,
                   config_.trace.on_error == TraceErrorAction::stop});
  files.push_back(checkpoints_to_write(config_, checkpoint_bytes(model_->units(), engine_->store), run_id_));
  return files;
}

// What the run goes on from says where it begins, and what was chosen for it where the run file leaves the choice.
void Run::go_on_from_checkpoint() {
  if (!resume_) return;
  first_step_ = done_ = resume_->index.step;
  world_.together([&] {
    check_same_run(config_, *resume_, world_.size());
    changed_ = what_was_changed(config_, *resume_);
    const std::string table = resume_->folder + "/gemm_algorithms.txt";
    if (!std::filesystem::exists(table)) return;
    gemm_table_ = checkpoints_folder(config_) + "/gemm_algorithms." + run_id_ + ".txt";  // nobody else's name
    if (!first()) return;
    std::filesystem::create_directories(checkpoints_folder(config_));
    std::filesystem::copy_file(table, gemm_table_, std::filesystem::copy_options::overwrite_existing);
  });
  const auto then = [&](const char* name) { return resume_->index.run[name]; };
  if (asked_ && then("ranks") == std::to_string(world_.size()))
    kept_ = {ChosenSettings::of(resume_->index.config), then(kChoiceTimings)};
  if (config_.parallel.reshard == ReshardPolicy::automatic && then("ranks") == std::to_string(world_.size()) &&
      cuts_parameters(config_.parallel.strategy))
    config_.parallel.reshard = find_choice<ReshardPolicy>(then("reshard")).value_or(ReshardPolicy::automatic);
}

std::map<std::string, std::string> Run::facts() const {
  std::map<std::string, std::string> facts{
      {"ranks", std::to_string(world_.size())},
      {"strategy", groups_text(plan_)},
      {"device", concat(device_->name(), device_->code().empty() ? "" : " ", device_->code())},
      {"version", version_commit()},
      {"batch_size", std::to_string(config_.train.batch_size)},
      {"samples_of_a_step", std::to_string(samples_of_a_step(config_, world_.size()))}};
  if (cuts_parameters(plan_.strategy)) facts["reshard"] = reshard_name(plan_);
  return facts;
}

// What the run file leaves to the program: rank 0 chooses for all, by the least memory that any rank has.
void Run::choose_settings(int64_t node_ranks, int64_t available) {
  if (!asked_) return;
  const MemoryLeft left = memory_left(world_, *device_, context_bytes_);
  const bool times = device_->kind() == DeviceKind::cuda || std::getenv(kTimesOnCpu);
  BatchChoice choice;
  std::vector<TimedStep> steps;
  world_.together([&] {
    if (!first()) return;
    const PlannedTexts texts(before_choice(*asked_, world_.size()), model_->inputs(), data_, prompts_.get());
    const FitSearch search(*asked_, node_ranks, left.device, texts, rates_of(device_->name()));
    choice = choose_batch(search, *asked_, world_.size(), left.device, left.host, kept_, times ? ChoiceTiming::kMost : 2);
    if (!times) choice.reason = choice_text_of_cpus(choice, left.device);
    for (size_t i = 0; times && i < choice.open(); ++i) steps.push_back(timed_step(search, choice.rows[i]));
  });
  times_.part("choice");
  const std::vector<CandidateTime> timings = time_choice(steps, available);
  if (!timings.empty() && first()) choice = decided(choice, timings, left.device);
  choice_ = world_.from_rank(0, choice.reason);
  timings_ = world_.from_rank(0, choice.timings);
  ChosenSettings::of(world_.from_rank(0, ChosenSettings::of(choice.config).text())).apply(config_);
  compare_facts(world_, config_facts(config_), "the ranks do not agree on train.batch_size: auto");
  world_.together([&] {
    model_ = make_model(config_);          // which knows what is recomputed
    group_sizes_ = group_sizes(config_, world_.size(), node_ranks);
    data_.text_shapes = text_shapes_of(config_, world_.size(), data_);
  });
  times_.part("timing");
}

// Of what rank 0 gives; empty where that is nothing.
std::vector<CandidateTime> Run::time_choice(const std::vector<TimedStep>& steps, int64_t available) {
  if (world_.max(static_cast<int64_t>(steps.size())) == 0) return {};
  connect();
  return time_candidates({&world_, device_.get(), groups_.get(), group_sizes_, available, [this] { return make_ops(false); }},
                         *asked_, steps);
}

void Run::connect() {
  if (groups_) return;
  groups_ = make_groups(config_, world_, group_sizes_, *device_);
  faults_.watch(*groups_);
}

void Run::open_data() {
  data_ = open_run_data(config_, model_->inputs(), world_.size(),
                        std::max(config_.data.num_workers, cores_of_a_rank(world_)));
  prompts_ = open_validation_prompts(config_, model_->inputs(), data_);
}

// Its threads prepare the first steps beside all that comes before them.
void Run::start_loader() {
  loader_ = make_data_loader(config_, world_.rank(), world_.size(), model_->inputs(), data_.text_shapes,
                             data_.tokenizer, data_.training, *device_, first_step_, data_.instructions);
  BLIPFT_USER_CHECK(first_step_ <= loader_->total_steps(), resume_->folder, ": the checkpoint was written after ",
                    first_step_, " steps, but the run has ", loader_->total_steps(),
                    " in all; raise train.max_steps or train.max_epochs to go on");
  if (data_.validates())
    validation_loader_ = make_validation_loader(config_, world_.rank(), world_.size(), model_->inputs(),
                                                data_.text_shapes, data_.tokenizer, data_.validation, *device_,
                                                data_.instructions);
  if (config_.parallel.cuda_graph && !data_.surveyed())
    looking_ahead_ = std::make_unique<Beside>(
        times_, "looking_ahead", [this] { first_shapes_ = loader_->first_text_shapes(kSamplesLookedAt); });
}

void Run::make_backend() {
  monitor_ = make_device_monitor(wants_cuda(config_) ? cuda_device_of(world_.local_rank()) : -1);
  device_ = make_device(config_, world_);
  device_->bind_thread();
  kernels_ = make_tracer(config_, *device_);
  const char* home = std::getenv("HOME");
  if (gemm_table_.empty() && home) gemm_table_ = std::string(home) + "/.cache/blipft/gemm_algorithms.txt";
  ops_ = make_ops(true);
  BLIPFT_USER_CHECK(config_.train.matmul != MatmulType::fp8 || ops_->has_fp8(), place_of(config_, "train.matmul"),
                    ": train.matmul: found fp8, but ", device_->name(),
                    " has no products in fp8: GPUs of compute capability 8.9 and later (L40S, H100, H200) have; remove it");
  optimizer_ = make_optimizer(config_.train);
  context_bytes_ = std::max<int64_t>(0, monitor_->process_bytes());
}

std::unique_ptr<Ops> Run::make_ops(bool times_products) const {
  if (device_->kind() != DeviceKind::cuda) return make_cpu_ops();
  const ProductSearch search = !times_products                              ? ProductSearch::none
                               : config_.parallel.gemm_search == GemmSearchTime::thorough ? ProductSearch::thorough
                                                                            : ProductSearch::quick;
  return make_cuda_ops(*device_, gemm_table_, {search, config_.train.matmul_precision == MatmulPrecision::high});
}

// Of all ranks' GPUs, because the choice that hangs on it must be the same on every rank; 0 on CPUs.
int64_t Run::least_free_memory() const {
  return device_->kind() == DeviceKind::cuda ? -world_.max(-device_->memory().free) : 0;
}

void Run::commit() {
  arena_ = std::make_unique<Arena>(*device_, *plan_.arena);
  if (config_.trace.enabled && config_.trace.spans != SpanTracing::none) spans_ = &span_recorder_;
  engine_ = make_engine(plan_,
                        {&config_, model_.get(), device_.get(), ops_.get(), groups_->groups(), arena_.get(), optimizer_.get(),
                         nullptr, spans_, data_.pixel_statistics, plan_.text_shapes, &faults_.activity()},
                        std::max(0, data_.tokenizer->pad_id()));
  check_host_memory(config_, world_, arena_->host_bytes());
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
void Run::restore(const WeightContext& context) {
  if (resume_) restore_state(context, resume_->index, resume_->folder, 4);
  else adapters_ = load_adapters(context, config_);
}

// A checkpoint is read on other threads, while steps are captured on this one: that runs nothing on the device, but the
// arena is this thread's meanwhile, so that the context is made before.
void Run::fill_weights() {
  const std::vector<TextShape> shapes = shapes_to_prepare();
  const WeightContext context = weight_context();
  const bool random = config_.model.init == InitialWeights::random;
  engine_->program->warm_up(context.scratch);
  times_.part("connections");
  world_.together([&] {
    init_weights(context, static_cast<uint64_t>(config_.train.seed), random ? Filled::all : Filled::fresh);
    if (random) {
      restore(context);
      times_.part("weights");
      engine_->program->prepare(shapes);
      times_.part("graphs");
      return;
    }
    Beside reading(times_, "reading", [&] {
      checkpoint_ = std::make_shared<const SafetensorsReader>(config_.model.path);
      check_weights(model_->units(), *checkpoint_);
      load_weights(resume_ ? frozen_of(context) : context, *checkpoint_, 8);
      restore(context);
    });
    engine_->program->prepare(shapes);
    times_.part("graphs");
    reading.wait();
    times_.part("weights");
  });
  begin_to_check_weights();
  world_.together([&] { engine_->program->settle(); });
  times_.part("products");
}

// Those that were read; adapters of another run are in the checkpoints from the first step on.
void Run::begin_to_check_weights() {
  std::vector<WeightFiles> sources;
  if (checkpoint_ && (!resume_ || !frozen_of(weight_context()).units.empty())) sources.push_back({"model file", checkpoint_});
  if (adapters_) sources.push_back({"adapter file", std::move(adapters_), false});
  contents_->begin_weights(std::move(sources));
  if (!config_.output.save_model) checkpoint_.reset();
}

void Run::start_answers() {
  if (!plan_.decoding) return;
  const bool gathers = engine_->store.shards() > 1 && !plan_.decoding->keeps_units;
  answers_ = std::make_unique<ValidationAnswers>(ValidationAnswers::Parts{
      &config_, &world_, data_.tokenizer, prompts_, engine_->decoder.get(), device_->kind() != DeviceKind::cuda, gathers,
      [this] { faults_.activity().phase(Activity::Phase::validation); }});
}

void Run::start_trace(int64_t start_ns, int64_t part) {
  faults_.folder_made();
  trace_ = std::make_unique<RunTrace>(TraceParts{&config_, &world_, device_.get(), groups_.get(), model_.get(),
                                                 arena_.get(), &plan_, spans_, monitor_.get(), loader_->total_steps(),
                                                 context_bytes_, start_ns, &times_, part, first_step_, run_id_, changed_, choice_, timings_, &data_.training});
  if (plan_.loading_bytes > 0) trace_->scratch_memory(-1, "loading", plan_.loading_bytes);
}

void Run::start_record(int64_t part) {
  RunRecord::Part own{run_id_, world_.size()};
  own.samples_per_step = samples_of_a_step(config_, world_.size());
  own.resumed = resume_ != nullptr;
  own.number = own.resumed ? std::max<int64_t>(1, part) : 0;
  own.first_step = first_step_;
  own.total_steps = loader_->total_steps();
  own.strategy = groups_text(plan_);
  record_ = std::make_unique<RunRecord>(config_, own);
}

// What is most often no intention.
void Run::warn_at_start() const {
  const int64_t steps = loader_->total_steps(), warmup = config_.train.warmup_steps;
  if (warmup >= steps && warmup > 0 && !resume_)
    progress_->warn(concat(place_of(config_, "train.warmup_steps"), ": train.warmup_steps is ", warmup, ", and the run has ",
                           counted(steps, "step"), ": the learning rate never reaches train.lr; lower it, or give ",
                           "train.warmup_ratio in its place"));
  if (!model_->inputs().has_picture() && data_.training.dataset->has_pictures())
    progress_->warn(concat("the model reads no pictures: of the samples in ", config_.data.path,
                           " it learns the captions alone"));
  if (!data_.surveyed()) return;
  const TextSurvey& texts = *data_.training.texts;
  if (texts.surveyed() > 0 && texts.cut() == texts.surveyed())
    progress_->warn(concat("all ", texts.surveyed(), " texts are cut to ", config_.data.max_text_tokens, " tokens (",
                           "data.max_text_tokens); none is learnt to its end"));
}

void Run::announce() {
  Progress::Run run;
  run.total_steps = loader_->total_steps();
  run.first_step = first_step_;
  run.steps_per_epoch = loader_->steps_per_epoch();
  run.samples_per_step = samples_of_a_step(config_, world_.size());
  run.ranks = world_.size();
  run.text_only = !model_->inputs().has_picture();
  run.memory_bytes = arena_->total_bytes();
  progress_ = std::make_unique<Progress>(config_, run, !first());
  times_.part("trace");
  ready_seconds_ = times_.seconds();
  if (!first()) return;
  const std::string code = device_->code();
  print_header(config_, *model_, concat(world_.size(), " rank(s), ", strategy_text(plan_), ", ",
                                        groups_->groups().all->name()),
               concat(device_->name(), code.empty() ? "" : ", ", code), times_.text(), batch_text(config_, choice_, world_.size()),
               header_table(plan_, device_->kind() == DeviceKind::cuda));
  std::printf("data       %s\n", data_text(config_, data_, run).c_str());
  if (data_.surveyed())
    std::printf("texts      %s; %s\n", survey_text(config_, *data_.training.texts).c_str(),
                text_shapes_text(plan_.text_shapes).c_str());
  if (data_.validates()) std::printf("validation %s\n", validation_text(config_, data_).c_str());
  if (writes_checkpoints(config_))
    std::printf("checkpoint %s\n", checkpoints_text(config_, model_->units(), engine_->store, world_.size(),
                                                   world_.local_size()).c_str());
  if (!config_.output.save_model && !writes_checkpoints(config_) && !smoke_)
    std::printf("note: what is learnt will not be kept: output.save_model is false, and no checkpoint is asked for\n");
  if (!resume_ && config_.checkpoint.resume == ResumeMode::automatic)
    std::printf("begins     at the first step: %s has no checkpoint\n", checkpoints_folder(config_).c_str());
  if (resume_) {
    const std::string changes = what_may_change_bits(*resume_, facts());
    std::printf("resume     after %lld steps, from %s%s%s\n", static_cast<long long>(first_step_),
                resume_->folder.c_str(),
                changes.empty() ? "" : "; rounding may differ from a run that was never stopped: ", changes.c_str());
    if (!changed_.empty()) std::printf("changed    %s\n", changed_.c_str());
  }
  for (const std::string& text : {decoding_text(plan_), fp8_text(plan_, *model_)})
    if (!text.empty()) std::printf("%s\n", text.c_str());
  warn_at_start();
  if (config_.train.matmul_precision == MatmulPrecision::high &&
      (config_.train.precision != Precision::f32_true || device_->kind() != DeviceKind::cuda))
    std::printf("note       train.matmul_precision high has no effect: only 32-true on GPUs has TF32 products\n");
  if (config_.train.matmul == MatmulType::fp8 && device_->kind() == DeviceKind::cpu)
    std::printf("note       train.matmul fp8 is emulated on CPUs: the results are those of a GPU up to rounding, the speed is not\n");
  if (config_.model.init == InitialWeights::pretrained && has_head(model_->units(), config_.model.path) &&
      says_tied(config_.model.path))
    std::printf("note       config.json ties the head to the embeddings, but the checkpoint has another weight for it: the "
                "head is trained untied, as transformers loads it\n");
  std::fflush(stdout);
}

}  // namespace blipft
