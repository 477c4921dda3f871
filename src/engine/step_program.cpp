// The step: inputs, micro-batches, update; see step_program.h.
#include "engine/step_program.h"

#include <algorithm>
#include <cstring>

#include "ops/host_memory.h"

namespace blipft {

namespace {
constexpr int64_t kScalarBytes = 256, kResultBytes = 256;
constexpr int64_t kSentScalars = kStepScalars + 1;  // after those of the update: this rank's text tokens
static_assert(kScalarBytes >= 4 * kSentScalars);
}  // namespace

// Pinned host memory of one launched step: the scalars that are sent, and the results that are received.
struct StepProgram::Slot {
  Slot(Device& device, int64_t bytes) : memory(device, bytes), done(device.create_event()) {}
  HostMemory memory;                       // scalars, [loss, text tokens, grad norm], stamps, results of fp8 casts
  float* scalars() const { return reinterpret_cast<float*>(memory.get()); }
  char* results() const { return memory.get() + kScalarBytes; }
  Event done;
  StepResult result;
};

StepProgram::StepProgram(const StepParts& parts, std::vector<TextShape> text_shapes)
    : parts_(parts), text_shapes_(std::move(text_shapes)),
      micro_batches_(parts.settings.steps.accumulate_grad_batches),
      batch_size_(parts.settings.steps.batch_size) {
  BLIPFT_CHECK(!text_shapes_.empty(), "a step program needs the text shapes that steps may have");
  Arena& arena = *parts_.arena;
  if (offloads(parts_.settings, OffloadedData::activations))
    in_host_ = std::make_unique<HostActivations>(*parts_.device, arena);
  for (const TextShape& text : text_shapes_) programs_.push_back({text, PassKind::step, nullptr});
  if (validates(parts_.settings))
    for (const TextShape& text : text_shapes_) programs_.push_back({text, PassKind::evaluation, nullptr});
  const int64_t bytes = layout(text_shapes_.back(), PassKind::step).bytes();
  staging_ = arena.persistent(Owner::data, "batch being copied in", DType::u8, {bytes});
  batch_ = arena.persistent(Owner::data, "batch of the step", DType::u8, {bytes});
  scalars_staging_ = arena.persistent(Owner::data, "step scalars", DType::f32, {kSentScalars});
  scalars_ = arena.persistent(Owner::data, "step scalars", DType::f32, {kSentScalars});
  loss_ = arena.persistent(Owner::data, "step results", DType::f32, {2});
  norm_square_ = arena.persistent(Owner::data, "step results", DType::f32, {1});
  label_count_ = arena.persistent(Owner::data, "step results", DType::f32, {1});
  loss_weights_ = arena.persistent(Owner::data, "step results", DType::f32, {micro_batches_});
  workspace_ = arena.persistent(Owner::workspace, "workspace of the ops", DType::u8, {2 * kWorkspaceBytes});
  // A generous bound: each unit has at most 8 spans in a micro-batch.
  const int64_t spans = parts_.spans ? 8 * static_cast<int64_t>(parts_.model->units().size()) * micro_batches_ + 8 : 1;
  stamps_ = arena.persistent(Owner::data, "clock readings", DType::i64, {2 * spans});
  if (parts_.fp8 && parts_.fp8->largest() && parts_.comm->size() > 1)
    fp8_of_ranks_ = arena.persistent(Owner::data, "step results", DType::f32, parts_.fp8->largest().shape);
}

StepProgram::~StepProgram() = default;

double step_flops(const EngineSettings& settings, const Model& model, const TextShape& text) {
  const int64_t batch = settings.steps.batch_size;
  return static_cast<double>(settings.steps.accumulate_grad_batches) * model.flops(batch, text.mean_rows(batch));
}

std::string StepProgram::pass_name(const TextShape& text, PassKind kind) {
  const std::string what = kind == PassKind::step ? "step of " : "evaluation of ";
  const std::string source = text.packed_source_rows > 0 ? concat(" and ", text.packed_source_rows, " of sources")
                             : text.source_tokens > 0    ? concat(" and ", text.source_tokens, " of sources")
                                                         : "";
  const std::string pictures = text.pictures.rows > 0 ? concat(" and ", text.pictures.rows, " of pictures") : "";
  return text.packed() ? concat(what, text.packed_rows, " packed text rows", source, pictures)
                       : concat(what, text.tokens, " text tokens", source, pictures);
}

BatchLayout StepProgram::layout(const TextShape& text, PassKind kind) const {
  return {parts_.model->inputs(), kind == PassKind::step ? micro_batches_ : 1, batch_size_, text};
}

void StepProgram::record_passes() {
  // In the first pass the strategy records the order of units; the second determines the memory of a step.
  enqueue_step(text_shapes_.back());
  enqueue_step(text_shapes_.back());
  parts_.strategy->set_memory_limit(parts_.arena->peak_transient(pass_name(text_shapes_.back())));
  if (validates(parts_.settings)) enqueue_evaluation(text_shapes_.back());
  for (const Program& program : programs_) enqueue(program.text, program.kind);
  if (parts_.spans)
    BLIPFT_CHECK(2 * parts_.spans->max_spans() <= stamps_.numel(),
                 "more spans than clock readings: ", parts_.spans->max_spans());
}

void StepProgram::bind() {
  const Arena& arena = *parts_.arena;
  for (Tensor* tensor : {&staging_, &batch_, &scalars_staging_, &scalars_, &loss_, &norm_square_, &label_count_,
                         &loss_weights_, &workspace_, &stamps_})
    *tensor = arena.resolve(*tensor);
  if (fp8_of_ranks_) fp8_of_ranks_ = arena.resolve(fp8_of_ranks_);
  Device& device = *parts_.device;
  parts_.ops->set_workspace(workspace_);
  if (parts_.spans) parts_.spans->bind(&device, stamps_);
  for (const Tensor& tensor : {batch_, scalars_}) device.zero(tensor.data, tensor.bytes(), device.compute_stream());
  staged_ = device.create_event();
  unstaged_ = device.create_event();
  forked_ = device.create_event();
  joined_ = device.create_event();
  device.record(unstaged_, device.compute_stream());
  int64_t bytes = kScalarBytes + kResultBytes + stamps_.bytes();
  if (parts_.fp8)
    for (const Tensor& found : {parts_.fp8->counts(), parts_.fp8->largest(), fp8_of_ranks_}) bytes += found ? found.bytes() : 0;
  for (int64_t i = 0; i < kSlots; ++i) slots_.push_back(std::make_unique<Slot>(device, bytes));
}

MicroBatch StepProgram::micro_batch(int64_t m, const TextShape& text, PassKind kind) const {
  MicroBatch batch = layout(text, kind).micro_batch(batch_.data, m);
  batch.pixel_statistics = parts_.pixel_statistics;
  batch.loss_weight = loss_weights_.part(parts_.settings.steps.loss_normalization == LossNormalization::micro_batch ? m : 0, {1});
  batch.loss = loss_.part(0, {1});
  return batch;
}

// Enqueues the weight of each label in the step's loss: 1 / labels of the whole step, or, for a mean of micro-batch
// means, 1 / (labels of the micro-batch * micro-batches * ranks).
void StepProgram::enqueue_loss_weights(const TextShape& text) {
  const Stream stream = parts_.device->compute_stream();
  const Tensor counts = layout(text, PassKind::step).whole(BatchField::label_counts, batch_.data);
  if (parts_.settings.steps.loss_normalization == LossNormalization::micro_batch) {
    parts_.ops->loss_weights(counts, loss_weights_, static_cast<float>(micro_batches_ * parts_.comm->size()), stream);
    return;
  }
  parts_.ops->sum(counts, label_count_, false, stream);
  if (parts_.comm->size() > 1) parts_.comm->all_reduce(label_count_, stream);
  parts_.ops->loss_weights(label_count_, loss_weights_.part(0, {1}), 1, stream);
}

// The span of the step is the first one. Without spans its two clock readings are the only ones.
void StepProgram::mark_begin() {
  const Stream stream = parts_.device->compute_stream();
  if (parts_.spans) parts_.spans->begin(RankOperation::step, stream);
  else parts_.device->timestamp(stamps_.as<int64_t>(), stream);
}

void StepProgram::mark_end() {
  const Stream stream = parts_.device->compute_stream();
  if (parts_.spans) parts_.spans->end(RankOperation::step, stream);
  else parts_.device->timestamp(stamps_.as<int64_t>() + 1, stream);
}

void StepProgram::begin_pass(const TextShape& text, PassKind kind) {
  const std::string name = pass_name(text, kind);
  parts_.arena->begin_pass(name);
  if (parts_.fp8) parts_.fp8->begin_pass();
  if (parts_.spans)
    parts_.spans->begin_pass(name, [this, text](const Unit& unit, Phase phase) {
      return parts_.model->unit_flops(unit, phase, batch_size_, text.mean_rows(batch_size_));
    });
  mark_begin();
}

StepContext StepProgram::step_context() const {
  return {.ops = *parts_.ops, .device = *parts_.device, .arena = *parts_.arena, .units = *parts_.strategy,
          .stream = parts_.device->compute_stream(), .side = parts_.device->side_stream(), .forked = forked_,
          .joined = joined_, .observer = parts_.observer, .seed = static_cast<uint64_t>(parts_.settings.steps.seed),
          .training = true, .max_coded_rows = 0, .in_host = in_host_.get(), .fp8 = parts_.fp8};
}

void StepProgram::enqueue(const TextShape& text, PassKind kind) {
  if (kind == PassKind::step) enqueue_step(text);
  else enqueue_evaluation(text);
}

void StepProgram::enqueue_step(const TextShape& text) {
  Device& device = *parts_.device;
  Strategy& strategy = *parts_.strategy;
  SpanRecorder* spans = parts_.spans;
  const Stream stream = device.compute_stream();
  begin_pass(text, PassKind::step);
  if (parts_.fp8) parts_.fp8->begin_notes(device, stream);
  strategy.begin_step(scalars_.part(0, {kStepScalars}), static_cast<float>(largest_norm(parts_.settings.train)));
  device.zero(loss_.data, loss_.bytes(), stream);
  parts_.ops->sum(scalars_.part(kStepScalars, {1}), loss_.part(1, {1}), false, stream);  // summed over ranks with the loss
  enqueue_loss_weights(text);
  const StepContext context = step_context();
  for (int64_t m = 0; m < micro_batches_; ++m) {
    if (spans) spans->set_micro_batch(m);
    strategy.begin_micro_batch(m, micro_batches_);
    if (parts_.fp8) parts_.fp8->begin_micro_batch(device, stream);
    parts_.model->forward_backward(context, micro_batch(m, text, PassKind::step));
  }
  strategy.finish_backward();
  sum_results();
  if (spans) spans->begin(RankOperation::update, stream);
  strategy.update(norm_square_);
  if (spans) spans->end(RankOperation::update, stream);
  mark_end();
  parts_.arena->mark("after_optimizer");
  parts_.arena->end_pass();
}

// Sums results over ranks. A sum of fp8 magnitudes shows only whether the magnitudes of all ranks are finite.
void StepProgram::sum_results() {
  if (parts_.comm->size() == 1) return;
  const Stream stream = parts_.device->compute_stream();
  parts_.comm->all_reduce(loss_, stream);
  if (!fp8_of_ranks_) return;
  parts_.device->copy(fp8_of_ranks_.data, parts_.fp8->largest().data, fp8_of_ranks_.bytes(), stream);
  parts_.comm->all_reduce(fp8_of_ranks_, stream);
}

void StepProgram::enqueue_evaluation(const TextShape& text) {
  const Stream stream = parts_.device->compute_stream();
  begin_pass(text, PassKind::evaluation);
  if (parts_.spans) parts_.spans->set_micro_batch(0);
  parts_.strategy->begin_evaluation();
  parts_.device->zero(loss_.data, loss_.bytes(), stream);
  const Tensor count = layout(text, PassKind::evaluation).of(BatchField::label_counts, batch_.data, 0);
  parts_.ops->loss_weights(count, loss_weights_.part(0, {1}), 1, stream);
  if (parts_.fp8) parts_.fp8->begin_micro_batch(*parts_.device, stream);
  parts_.model->forward_loss(step_context(), micro_batch(0, text, PassKind::evaluation));
  parts_.strategy->finish_backward();
  mark_end();
  parts_.arena->end_pass();
}

StepProgram::Program& StepProgram::program_of(const TextShape& text, PassKind kind) {
  const auto found = std::find_if(programs_.begin(), programs_.end(), [&](const Program& program) {
    return program.text == text && program.kind == kind;
  });
  BLIPFT_CHECK(found != programs_.end(), "a ", pass_name(text, kind), " was not planned");
  return *found;
}

std::unique_ptr<Graph> StepProgram::capture(const Program& program) {
  return parts_.device->capture(parts_.device->compute_stream(),
                                [this, text = program.text, kind = program.kind] { enqueue(text, kind); });
}

// A communication library opens connections in the first collective of each kind and size, and ranks wait for each
// other there. This must not happen while a step is captured.
bool StepProgram::warms_up() const { return parts_.settings.parallel.cuda_graph && parts_.comm->size() > 1; }

int64_t StepProgram::warm_up_bytes() const { return warms_up() ? parts_.strategy->warm_up_bytes() : 0; }

void StepProgram::warm_up(const Tensor& gathered, const Tensor& summed) {
  if (!warms_up()) return;
  Device& device = *parts_.device;
  const Stream stream = device.compute_stream();
  for (const Tensor& memory : {gathered, summed})
    if (memory.numel() > 0) device.zero(memory.data, memory.bytes(), stream);
  device.zero(loss_.data, loss_.bytes(), stream);
  device.synchronize();
  parts_.strategy->warm_up(gathered, summed);
  device.synchronize();
  if (fp8_of_ranks_) {
    device.zero(fp8_of_ranks_.data, fp8_of_ranks_.bytes(), stream);
    parts_.comm->all_reduce(fp8_of_ranks_, stream);
  }
  parts_.comm->all_reduce(loss_, stream);  // as small as the step's other sums; it also synchronizes the ranks
  device.synchronize();
}

void StepProgram::prepare(const std::vector<TextShape>& shapes) {
  if (!parts_.settings.parallel.cuda_graph) return;
  for (Program& program : programs_)
    if (std::count(shapes.begin(), shapes.end(), program.text) > 0) program.graph = capture(program);
}

void StepProgram::tune_deferred_products() {
  if (!parts_.ops->tune_deferred_products()) return;
  for (Program& program : programs_)
    if (program.graph) program.graph = capture(program);
}

StepProgram::Slot& StepProgram::next_slot(const HostBatch& batch, PassKind kind) {
  BLIPFT_CHECK(in_flight() < kSlots, "a finished step must be drained before the next launch");
  const TextShape text = batch.layout.text();
  BLIPFT_CHECK(batch.layout == layout(text, kind),
               "a batch that is laid out for other model inputs or another batch size");
  Slot& slot = *slots_[launched_++ % kSlots];
  slot.result = {};
  slot.result.step = batch.step;
  slot.result.kind = kind;
  slot.result.text = text;
  std::fill_n(slot.scalars(), kSentScalars, 0.0f);
  return slot;
}

void StepProgram::launch(const HostBatch& batch, double lr, int64_t wait_begin_ns, int64_t wait_end_ns) {
  Slot& slot = next_slot(batch, PassKind::step);
  slot.result.lr = lr;
  slot.result.flops = step_flops(parts_.settings, *parts_.model, slot.result.text);
  slot.result.wait_begin_ns = wait_begin_ns;
  slot.result.wait_end_ns = wait_end_ns;
  parts_.optimizer->scalars(batch.step + 1, lr, slot.scalars());
  slot.scalars()[kClipCoefficient] = 1;
  slot.scalars()[kStepNumber] = static_cast<float>(batch.step + 1);
  slot.scalars()[kStepScalars] = static_cast<float>(batch.text_tokens_used);
  run(batch, PassKind::step, slot);
}

void StepProgram::launch_evaluation(const HostBatch& batch) {
  Slot& slot = next_slot(batch, PassKind::evaluation);
  slot.result.labels = *batch.layout.whole(BatchField::label_counts, batch.block).as<float>();
  run(batch, PassKind::evaluation, slot);
}

void StepProgram::copy_in(const HostBatch& batch, const Slot& slot) {
  Device& device = *parts_.device;
  const Stream compute = device.compute_stream(), copy = device.copy_stream();
  const int64_t bytes = batch.layout.bytes();
  device.wait(copy, unstaged_);
  device.copy(staging_.data, batch.block, bytes, copy);
  device.copy(scalars_staging_.data, slot.scalars(), scalars_staging_.bytes(), copy);
  device.record(staged_, copy);
  device.wait(compute, staged_);
  device.copy(batch_.data, staging_.data, bytes, compute);
  device.copy(scalars_.data, scalars_staging_.data, scalars_.bytes(), compute);
  device.record(unstaged_, compute);
}

void StepProgram::run(const HostBatch& batch, PassKind kind, Slot& slot) {
  Device& device = *parts_.device;
  const Stream compute = device.compute_stream();
  Program& program = program_of(slot.result.text, kind);
  copy_in(batch, slot);
  // The first step of a shape that was not prepared runs without a graph, because it times matrix products.
  if (parts_.settings.parallel.cuda_graph && (program.graph || program.warm)) {
    if (!program.graph) program.graph = capture(program);
    program.graph->launch(compute);
  } else {
    enqueue(program.text, kind);
    program.warm = true;
  }
  copy_results(slot);
  device.record(slot.done, compute);
}

void StepProgram::copy_results(const Slot& slot) {
  Device& device = *parts_.device;
  const Stream compute = device.compute_stream();
  char* out = slot.results();
  device.copy(out, loss_.data, loss_.bytes(), compute);
  device.copy(out + 8, scalars_.as<float>() + kGradNorm, 4, compute);
  out += kResultBytes;
  device.copy(out, stamps_.data, stamps_.bytes(), compute);
  out += stamps_.bytes();
  if (!parts_.fp8 || slot.result.kind != PassKind::step) return;
  for (const Tensor& found : {parts_.fp8->counts(), parts_.fp8->largest(), fp8_of_ranks_}) {
    if (!found) continue;
    device.copy(out, found.data, found.bytes(), compute);
    out += found.bytes();
  }
}

// Reads the fp8 results that copy_results() wrote to `from`.
void StepProgram::read_fp8(const char* from, StepResult& result) const {
  const Fp8Products& fp8 = *parts_.fp8;
  result.fp8.resize(static_cast<size_t>(fp8.largest().numel()));
  if (fp8.counts())
    for (Fp8Found& found : result.fp8) {
      std::memcpy(found.counts, from, sizeof found.counts);
      from += sizeof found.counts;
    }
  const auto* const largest = reinterpret_cast<const float*>(from);
  for (size_t i = 0; i < result.fp8.size(); ++i) result.fp8[i].amax = largest[i];
  if (!is_finite(result))
    result.not_finite_in_fp8 = fp8.first_not_finite(fp8_of_ranks_ ? largest + fp8.largest().numel() : largest);
}

// If `waits`, sets the activity to a wait for the device in the oldest unfinished step, until the scope ends.
std::unique_ptr<Activity::Scope> StepProgram::waiting(bool waits) const {
  if (!waits || !parts_.activity || drained_ == launched_) return nullptr;
  Activity& activity = *parts_.activity;
  auto scope = std::make_unique<Activity::Scope>(activity, RankOperation::device);  // its end restores the state before
  activity.set({activity.state().phase, RankOperation::device, slots_[drained_ % kSlots]->result.step, -1});
  return scope;
}

bool StepProgram::batch_copied(bool wait) {
  const auto scope = waiting(wait);
  if (wait) parts_.device->synchronize(staged_);
  return parts_.device->reached(staged_);
}

bool StepProgram::finished(bool wait, StepResult& result) {
  if (drained_ == launched_) return false;
  Slot& slot = *slots_[drained_ % kSlots];
  const auto scope = waiting(wait);
  if (wait) parts_.device->synchronize(slot.done);
  else if (!parts_.device->reached(slot.done)) return false;
  const char* out = slot.results();
  float found[3];                          // loss, text tokens, norm
  std::memcpy(found, out, sizeof found);
  slot.result.loss = found[0];
  slot.result.text_tokens = found[1];
  slot.result.grad_norm = found[2];
  const int64_t* stamps = reinterpret_cast<const int64_t*>(out + kResultBytes);
  slot.result.stamps.assign(stamps, stamps + stamps_.numel());
  slot.result.begin_ns = stamps[0];
  slot.result.end_ns = stamps[1];
  if (parts_.fp8 && parts_.fp8->largest() && slot.result.kind == PassKind::step)
    read_fp8(out + kResultBytes + stamps_.bytes(), slot.result);
  result = std::move(slot.result);
  ++drained_;
  return true;
}

}  // namespace blipft
