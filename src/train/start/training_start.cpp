// The start of a training run; see training_start.h. The order of its parts is the table in
// TrainingStart::Parts::table().
#include "train/start/training_start.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "agreement/run_id.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/saving.h"
#include "checkpoint/training_state.h"
#include "config/config_facts.h"
#include "engine/placement.h"
#include "engine/settings.h"
#include "plan/training_plan.h"
#include "train/observers/run_trace.h"
#include "train/start/ended_run.h"
#include "train/start/resumed_run.h"
#include "train/start/start_parts.h"
#include "tune/step_timer.h"
#include "weights/adapter_files.h"

namespace blipft {

namespace {

// The largest number of text shapes to capture before training, and of samples to read to find them.
constexpr size_t kMaxPreparedShapes = 8;
constexpr int64_t kMaxSurveyedSamples = 512;
// For tests: times candidates with similar estimates on CPUs too.
constexpr const char* kTimesOnCpu = "BLIPFT_TIME_CHOICE_ON_CPU";
// On CPUs, texts, weights during loading and the system's caches need memory too.
constexpr double kShareOfHost = 0.5;

// Returns the bytes that a rank may plan for: the free memory of its GPU plus that of its own process; on CPUs a share
// of the machine's free memory. It is the smallest value of all ranks; called by all ranks.
MemoryLeft memory_left(const World& world, const Device& device, int64_t context_bytes) {
  const int64_t ranks = world.local_size();
  const auto host = static_cast<int64_t>(kShareOfHost * static_cast<double>(available_host_memory() / ranks));
  MemoryLeft left{host, host};
  if (device.kind() == DeviceKind::cuda) {
    const int64_t sharing = (ranks + cuda_device_count() - 1) / std::max(1, cuda_device_count());  // ranks that share a GPU
    left.device = (device.memory().free + context_bytes * sharing) / sharing;
  }
  return {-world.max(-left.device), -world.max(-left.host)};
}

// Returns the recorder for trace.kernels, or null if it names no steps.
std::unique_ptr<KernelTracer> make_tracer(const Config& config, const Device& device) {
  if (config.trace.kernels.empty()) return nullptr;
  const std::string location = location_of(config, "trace.kernels");
  BLIPFT_USER_CHECK(device.kind() == DeviceKind::cuda, location,
                    ": trace.kernels: kernels are recorded on GPUs, this run computes on ", device.name(),
                    "; remove trace.kernels");
  try {
    return make_kernel_tracer();
  } catch (const UserError& error) {
    throw UserError(concat(location, ": trace.kernels: ", error.what(), "; or remove trace.kernels"));
  }
}

}  // namespace

class TrainingStart::Parts {
 public:
  Parts(TrainingResources& resources, RunFaults& faults)
      : r_(resources), faults_(faults), config_(resources.plan.config), world_(resources.world),
        parts_(resources.world, resources.times) {}

  bool run() {
    check_same_files(config_, world_);
    if (!claim_folders()) return false;
    resolve_config();
    resume();
    parts_.run(table());
    return true;
  }

 private:
  // A part without a body waits for a background part, and its time is that wait.
  std::vector<StartPart> table() {
    using enum StartPart::Where;
    const bool random = config_.model.init == InitialWeights::random;
    std::vector<StartPart> parts{
        {"model", local, {}, [this] { open_model(); }, "model"},
        {"open data", beside, {"model"}, [this] { open_data(); }, "data"},
        {"device", local, {"model"}, [this] { make_backend(); }, "device"},
        {"facts", collective, {"open data", "device"}, [this] { gather_facts(); }},
        {"make plan", beside, {"facts"}, [this] { plan_ = plan_training(requested_, facts_); }, "plan"},
    };
    const auto add = [&](StartPart part) { parts.push_back(std::move(part)); };
    const StartPart communication{"communication", collective, {chooses() ? "facts" : "data"}, [this] { connect(); }, "communication"};
    if (chooses()) {
      add(communication);
      add({"choice", local, {"make plan"}, {}, "choice"});
      add({"timing", collective, {"choice", "communication"}, [this] { time_choice(); }, "timing"});
    }
    add({"loaders", local, {chooses() ? "timing" : "facts"}, [this] { start_loaders(); }});
    add({"look ahead", beside, {"loaders"}, [this] { look_ahead(); }, "looking_ahead", [this] { return looks_ahead(); }});
    add({"data", collective, {"loaders"}, [this] { check_data(); }, "data"});
    if (!chooses()) add(communication);
    add({"plan", local, {"make plan"}, [this] { take_plan(); }, "plan"});
    add({"memory", local, {"plan", "communication"}, [this] { commit_memory(); }, "memory"});
    add({"names and room", collective, {"memory"}, [this] { check_output(); }});
    add({"first values", local, {"names and room"}, [this, random] { init_values(random); }});
    // Weights are read while the other ranks' memory is mapped, connections are opened, and steps are captured.
    if (!random) add({"read weights", beside, {"first values"}, [this] { read_weights(); }, "reading"});
    add({"peers", collective, {"memory"}, [this] { expose_memory_to_peers(); }, "peers"});
    add({"answers", collective, {"peers"}, [this] { make_answers(); }});
    add({"connections", collective, {"peers", "look ahead"}, [this] { open_connections(); }, "connections"});
    if (random) add({"weights", local, {"first values"}, [this] { restore(); }, "weights"});
    add({"graphs", local, {"connections", "first values"}, [this] { r_.engine->program->prepare(shapes_); }, "graphs"});
    if (!random) add({"weights", local, {"read weights"}, {}, "weights"});
    add({"compare weights", collective, {"weights"}, [this] { begin_to_check_weights(); }});
    add({"products", local, {"weights", "graphs"}, [this] { r_.engine->program->tune_deferred_products(); }, "products"});
    return parts;
  }

  bool claim_folders();
  void resolve_config();
  void resume();
  void open_model();
  void open_data();
  void make_backend();
  void gather_facts();
  bool chooses() const { return chooses_batch_size(requested_); }
  void time_choice();
  void take_plan();
  void start_loaders();
  bool looks_ahead() const { return config_.parallel.cuda_graph && !r_.data.surveyed(); }
  void look_ahead() { first_shapes_ = r_.loaders.training->first_text_shapes(kMaxSurveyedSamples); }
  void check_data();
  void connect();
  void commit_memory();
  void expose_memory_to_peers();
  void make_answers();
  void check_output();
  std::vector<FileToWrite> files_to_write() const;
  void open_connections();
  std::vector<TextShape> shapes_to_prepare() const;
  void init_values(bool random);
  void restore();
  void read_weights();
  void begin_to_check_weights();

  TrainingResources& r_;
  RunFaults& faults_;
  Config& config_;                         // the resources' config
  const World& world_;
  Config requested_;                           // resolved for these ranks; train.batch_size may be auto
  TrainingFacts facts_;
  TrainingPlan plan_;                      // moved to the resources later
  std::vector<TextShape> first_shapes_;    // shapes of this rank's first steps, if steps are captured and texts are not surveyed
  std::vector<TextShape> shapes_;          // shapes to capture before training
  std::optional<WeightContext> context_;   // made before other threads use the arena
  Tensor first_gathers_;                   // scratch memory of the first collectives
  StartParts parts_;                       // last: its threads use the members above
};

// Claims output.path (a temporary folder in a trial) and the folder of the checkpoints, then finds the checkpoint to
// resume from.
bool TrainingStart::Parts::claim_folders() {
  RunIdentity& run = r_.run;
  world_.run_agreeing_on_errors([&] {                    // before anything is created, so that unreadable paths are reported
    if (r_.first_rank() && config_.checkpoint.resume == ResumeMode::automatic) newest_checkpoint(checkpoints_folder(config_));
  });
  run.folder = std::make_unique<OutputFolder>(config_, world_);
  config_.output.path = run.folder->path();
  faults_.unlock_at_end(run.folder->release());
  if (const auto ended = ended_text(config_, world_)) {
    if (r_.first_rank()) std::printf("%s\n", ended->c_str());
    return false;
  }
  run.resume = find_resume_point(config_, world_);  // only now: no other run can write a newer checkpoint here
  run.id = agree_on_run_id(world_, run.resume ? run_id_of(run.resume->index.run) : "");
  run.folder->claim(run.resume ? run.resume->folder : "");
  return true;
}

void TrainingStart::Parts::resolve_config() {
  facts_.ranks = world_.size();
  facts_.node_ranks = ranks_of_each_machine(world_);
  world_.run_agreeing_on_errors([&] { check_ranks(config_, world_.size()), config_ = resolve_for_ranks(config_, world_.size()); });
  requested_ = config_;
  if (chooses()) config_ = before_choice(requested_, world_.size());
}

// Takes the first step from the checkpoint, and earlier choices that the run file leaves open.
void TrainingStart::Parts::resume() {
  RunIdentity& run = r_.run;
  if (!run.resume) return;
  run.first_step = run.resume->index.step;
  world_.run_agreeing_on_errors([&] {
    check_same_run(config_, *run.resume, world_.size());
    run.changed_keys = what_was_changed(config_, *run.resume);
    const std::string table = run.resume->folder + "/gemm_algorithms.txt";
    if (!std::filesystem::exists(table)) return;
    std::string& own = r_.backend.gemm_table;
    own = checkpoints_folder(config_) + "/gemm_algorithms." + run.id + ".txt";  // a unique name
    if (!r_.first_rank()) return;
    std::filesystem::create_directories(checkpoints_folder(config_));
    std::filesystem::copy_file(table, own, std::filesystem::copy_options::overwrite_existing);
  });
  const auto recorded = [&](const char* name) { return run.resume->index.run[name]; };
  if (recorded("ranks") != std::to_string(world_.size())) return;
  if (chooses()) facts_.kept = {ChosenSettings::of(run.resume->index.config), recorded(kChoiceTimings)};
  else if (config_.parallel.reshard == ReshardPolicy::automatic && cuts_parameters(config_.parallel.strategy))
    requested_.parallel.reshard = config_.parallel.reshard =
        find_choice<ReshardPolicy>(recorded("reshard")).value_or(ReshardPolicy::automatic);
}

void TrainingStart::Parts::open_model() {
  r_.plan.groups = group_sizes(config_, world_.size(), facts_.node_ranks);
  check_device(config_, world_);
  facts_.model = std::make_shared<RunModel>(config_);
  r_.plan.model = facts_.model->make(config_);
  check_saved_parts(config_);
  // Checked early, because reading the model takes long.
  if (!r_.run.resume) check_adapters({config_.model, config_.adapter, config_}, r_.model().units());
}

void TrainingStart::Parts::open_data() {
  r_.data = open_run_data(config_, r_.model().inputs(), world_.size(),
                          std::max(config_.data.num_workers, cores_of_a_rank(world_)));
  r_.prompts = open_validation_prompts(config_, config_.evaluate.samples, r_.model().inputs(), r_.data);
  facts_.texts = std::make_shared<PlannedTexts>(config_, r_.model().inputs(), r_.data, r_.prompts.get(), chooses());
}

void TrainingStart::Parts::make_backend() {
  Backend& backend = r_.backend;
  backend.monitor = make_device_monitor(wants_cuda(config_) ? cuda_device_of(world_.local_rank()) : -1);
  backend.device = make_device(config_, world_);
  backend.device->bind_thread();
  backend.kernels = make_tracer(config_, *backend.device);
  if (backend.gemm_table.empty()) backend.gemm_table = gemm_table_of_user();
  backend.ops = make_ops(config_, *backend.device, backend.gemm_table);
  BLIPFT_USER_CHECK(config_.train.matmul != MatmulType::fp8 || backend.ops->has_fp8(), location_of(config_, "train.matmul"),
                    ": train.matmul: found fp8, but ", backend.device->name(),
                    " has no products in fp8: GPUs of compute capability 8.9 and later (L40S, H100, H200) have; remove it");
  r_.backend.optimizer = make_optimizer(config_.train, config_.steps.seed);
  backend.context_bytes = std::max<int64_t>(0, backend.monitor->process_bytes());
}

void TrainingStart::Parts::gather_facts() {
  const Device& device = *r_.backend.device;
  facts_.device = world_.from_rank(0, device.name());
  facts_.on_gpu = r_.backend.on_gpu();
  facts_.free_bytes = facts_.on_gpu ? -world_.max(-device.memory().free) : 0;  // measured before communicators allocate memory
  facts_.shapes = r_.data.text_shapes;
  if (!chooses()) return;
  facts_.times_steps = world_.max(static_cast<int64_t>(facts_.on_gpu || std::getenv(kTimesOnCpu))) > 0;
  facts_.left = memory_left(world_, device, r_.backend.context_bytes);
}

// Times candidates with similar estimates, and uses the fastest settings.
void TrainingStart::Parts::time_choice() {
  if (!plan_.decided()) {
    const StepTimerParts timer{&world_, r_.backend.device.get(), r_.backend.groups.get(), r_.plan.groups, facts_.free_bytes,
                               [this] { return make_ops(config_, *r_.backend.device, r_.backend.gemm_table, false); }};
    const TimedChoice timed{plan_.choice, time_candidates(timer, requested_, plan_.candidates)};
    world_.run_agreeing_on_errors([&] { plan_ = plan_training(requested_, facts_, &timed); });
  }
  config_ = plan_.config;
  compare_facts(world_, config_facts(config_), "the ranks do not agree on train.batch_size: auto");
  r_.data.text_shapes = plan_.memory.text_shapes;
}

// Does not replace the config object, because other threads read it; its values are equal.
void TrainingStart::Parts::take_plan() {
  r_.plan.groups = plan_.groups;
  r_.plan.outputs = std::move(plan_.outputs);
  r_.plan.choice = std::move(plan_.choice);
  r_.plan.memory = std::move(plan_.memory);
  r_.plan.model = std::move(plan_.model);
}

// Loader threads prepare the first steps while the rest of the start runs.
void TrainingStart::Parts::start_loaders() {
  const RunData& data = r_.data;
  Device& device = *r_.backend.device;
  const int64_t first_step = r_.run.first_step;
  const LoadingSettings settings = config_;
  r_.loaders.training = make_data_loader(settings, world_.rank(), world_.size(), r_.model().inputs(), data.text_shapes,
                                         data.tokenizer, data.training, device, first_step, data.instructions);
  BLIPFT_USER_CHECK(first_step <= r_.total_steps(), r_.run.resume->folder, ": the checkpoint was written after ", first_step,
                    " steps, but the run has ", r_.total_steps(),
                    " in all; raise train.max_steps or train.max_epochs to continue");
  if (!data.validates()) return;
  r_.loaders.validation = make_validation_loader(settings, world_.rank(), world_.size(), r_.model().inputs(), data.text_shapes,
                                                 data.tokenizer, data.validation, device, data.instructions);
}

void TrainingStart::Parts::check_data() {
  RunIdentity& run = r_.run;
  check_same_data(config_, r_.data, world_);
  world_.run_agreeing_on_errors([&] {
    if (!r_.first_rank()) return;          // other ranks have equal lines
    run.inputs = read_facts(config_, r_.data);
    if (!run.resume) return;
    const std::string other = check_same_content(config_, *run.resume, run.inputs);
    run.changed_keys += concat(other.empty() || run.changed_keys.empty() ? "" : ", ", other);
  });
  r_.sources.contents =
      std::make_unique<ContentCheck>(config_, world_, run.resume.get(), std::min<int64_t>(4, cores_of_a_rank(world_)));
  r_.sources.contents->begin_data(r_.data);
}

void TrainingStart::Parts::connect() {
  r_.backend.groups = make_groups(config_, world_, r_.plan.groups, *r_.backend.device);
  faults_.watch(*r_.backend.groups);
}

void TrainingStart::Parts::commit_memory() {
  r_.arena = std::make_unique<Arena>(*r_.backend.device, *r_.plan.memory.arena);
  r_.engine = make_engine(r_.plan.memory,
                          {.settings = config_,
                           .model = r_.plan.model.get(),
                           .device = r_.backend.device.get(),
                           .ops = r_.backend.ops.get(),
                           .groups = r_.backend.groups->groups(),
                           .arena = r_.arena.get(),
                           .optimizer = r_.backend.optimizer.get(),
                           .spans = r_.records_spans() ? &r_.backend.spans : nullptr,
                           .pixel_statistics = r_.data.pixel_statistics,
                           .text_shapes = r_.plan.memory.text_shapes,
                           .activity = &faults_.activity()},
                          std::max(0, r_.data.tokenizer->pad_id()));
  check_host_memory(config_, world_, r_.arena->host_bytes());
  try {
    r_.arena->commit();
  } catch (const UserError& error) {
    const std::string text = max_pixels_text(config_, *r_.plan.model, r_.plan.groups, facts_.free_bytes);
    throw UserError(text.empty() ? std::string(error.what()) : concat(error.what(), " Also, ", text, "."));
  }
}

void TrainingStart::Parts::expose_memory_to_peers() {
  expose_memory(config_.parallel, *r_.backend.groups, *r_.arena, r_.engine->store);
}

void TrainingStart::Parts::make_answers() {
  if (!r_.plan.memory.decoding) return;
  const bool gathers = r_.engine->store.shards() > 1 && !r_.plan.memory.decoding->keeps_units;
  r_.answers = std::make_unique<ValidationAnswers>(ValidationAnswers::Parts{
      .config = &config_,
      .world = &world_,
      .tokenizer = r_.data.tokenizer,
      .prompts = r_.prompts,
      .program = r_.engine->decoder.get(),
      .synchronous = !r_.backend.on_gpu(),
      .all_take_part = gathers,
      .alive = [&activity = faults_.activity()] { activity.phase(Activity::Phase::validation); }});
}

void TrainingStart::Parts::check_output() {
  r_.run.folder->check_names(r_.run.first_step, r_.total_steps());
  r_.run.folder->check_room([this] { return files_to_write(); });
}

// Returns the shapes to capture: those of all steps if all texts were surveyed, else the most frequent of the first
// steps. All ranks get the same result.
std::vector<TextShape> TrainingStart::Parts::shapes_to_prepare() const {
  if (r_.data.surveyed()) return r_.plan.memory.text_shapes;
  if (!looks_ahead()) return {};
  std::vector<std::pair<double, TextShape>> counted;
  for (const TextShape& shape : r_.plan.memory.text_shapes) {
    const auto mine = std::count(first_shapes_.begin(), first_shapes_.end(), shape);
    if (const double all = world_.sum(static_cast<double>(mine)); all > 0) counted.push_back({all, shape});
  }
  std::stable_sort(counted.begin(), counted.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<TextShape> shapes;
  for (size_t i = 0; i < counted.size() && i < kMaxPreparedShapes; ++i) shapes.push_back(counted[i].second);
  return shapes;
}

void TrainingStart::Parts::open_connections() {
  shapes_ = shapes_to_prepare();
  r_.engine->program->warm_up(first_gathers_, r_.arena->peer_scratch());
}

void TrainingStart::Parts::init_values(bool random) {
  r_.engine->bind();
  context_ = r_.weight_context();
  // The first gathers use the end of the scratch memory, which nothing else uses.
  const Tensor scratch = context_->scratch;
  const int64_t bytes = r_.engine->program->warm_up_bytes();
  first_gathers_ = scratch.part(scratch.numel() - bytes, {bytes});
  context_->scratch = scratch.part(0, {scratch.numel() - bytes});
  init_weights(*context_, static_cast<uint64_t>(config_.steps.seed), random ? Filled::all : Filled::fresh);
}

// Restores trained weights from a checkpoint of this run, or from adapters of another run.
void TrainingStart::Parts::restore() {
  const ResumePoint* resume = r_.run.resume.get();
  if (resume) restore_state(*context_, resume->index, resume->folder, 4);
  else r_.sources.adapters = load_adapters(*context_, {config_.model, config_.adapter, config_});
}

void TrainingStart::Parts::read_weights() {
  r_.sources.checkpoint = std::make_shared<const SafetensorsReader>(config_.model.path);
  check_weights(r_.model().units(), *r_.sources.checkpoint);
  load_weights(r_.run.resume ? frozen_of(*context_) : *context_, *r_.sources.checkpoint, 8);
  restore();
}

// Starts to compare the files of the weights on all ranks. Adapters of another run are compared only at the first
// start: later they are in the checkpoints.
void TrainingStart::Parts::begin_to_check_weights() {
  WeightSources& from = r_.sources;
  std::vector<WeightFiles> files;
  if (from.checkpoint && (!r_.run.resume || !frozen_of(*context_).units.empty()))
    files.push_back({"model file", from.checkpoint});
  if (from.adapters) files.push_back({"adapter file", std::move(from.adapters), false});
  from.contents->begin_weights(std::move(files));
  if (!config_.output.save_model) from.checkpoint.reset();
}

std::vector<FileToWrite> TrainingStart::Parts::files_to_write() const {
  std::vector<FileToWrite> files = files_to_save(config_, r_.model().units(), r_.engine->store);
  files.push_back({"trace", RunTrace::bytes(config_, r_.plan.memory, r_.total_steps() - r_.run.first_step,
                                            r_.loaders.training->steps_per_epoch()),
                   config_.output.path, config_.trace.on_error == TraceErrorAction::stop});
  files.push_back(checkpoints_to_write(config_, checkpoint_bytes(r_.model().units(), r_.engine->store), r_.run.id));
  return files;
}

TrainingStart::TrainingStart(TrainingResources& resources, RunFaults& faults)
    : parts_(std::make_unique<Parts>(resources, faults)) {}
TrainingStart::~TrainingStart() = default;
bool TrainingStart::run() { return parts_->run(); }

}  // namespace blipft
