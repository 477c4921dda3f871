// The timing of a candidate; see step_timer.h.
#include "tune/step_timer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "engine/placement.h"
#include "engine/settings.h"
#include "ops/host_memory.h"
#include "plan/memory_plan.h"
#include "weights/weights.h"

namespace blipft {

namespace {

constexpr int64_t kMaxSteps = 4;          // maximum steps of a measurement, in flight together
constexpr double kFewestSteps = 3;         // a warm-up step, a measured step, and the step before it

// Returns the configuration of a timed step, without evaluation and trace.
Config bare(Config config, const TimedStep& step) {
  step.settings.apply(config);
  config.steps.accumulate_grad_batches = step.micro_batches;
  config.data.val_path.clear();
  config.data.val_split_fraction = 0;
  config.evaluate.samples = 0;
  config.trace.enabled = false;
  config.model.init = InitialWeights::random;
  config.output.save_model = false;
  return config;
}

// Returns the length of text i if `count` texts have `rows` rows in total, divided evenly.
int64_t length_of(int64_t i, int64_t count, int64_t rows) { return rows / count + (i % count < rows % count ? 1 : 0); }

// One step of random texts and pictures.
class RandomBatch {
 public:
  RandomBatch(Device& device, const ModelInputs& inputs, const Config& config, const TextShape& text)
      : layout_(inputs, config.steps.accumulate_grad_batches, config.steps.batch_size, text), memory_(device, layout_.bytes()) {
    batch_.layout = layout_;
    batch_.block = memory_.get();
    std::vector<BatchSample> samples;
    for (int64_t i = 0; i < layout_.samples(); ++i) {
      samples.push_back({sample(i), i, false});
      batch_.text_tokens_used += samples.back().text.rows();
      if (!inputs.has_picture()) continue;
      uint8_t* pixels = BatchWriter::pixels(layout_, memory_.get(), i);
      std::generate_n(pixels, inputs.picture_size * inputs.picture_size * 3, [&] { return static_cast<uint8_t>(random_()); });
    }
    BatchWriter(0, false).write(layout_, samples, memory_.get());
  }
  const HostBatch& batch() const { return batch_; }

 private:
  std::vector<int32_t> ids(int64_t i, BatchStream stream) {
    const StreamInputs& inputs = layout_.inputs().of(stream);
    if (!inputs) return {};
    const int64_t length = length_of(i, layout_.batch_size(), layout_.text_rows(stream));
    std::vector<int32_t> drawn(static_cast<size_t>(std::min(length, inputs.max_tokens)));
    for (int32_t& id : drawn) id = static_cast<int32_t>(static_cast<int64_t>(random_()) % inputs.vocabulary);
    return drawn;
  }
  TokenizedText sample(int64_t i) {
    TokenizedText text;
    text.ids = ids(i, BatchStream::text);
    text.is_label.assign(text.ids.size(), 1);
    text.instruction = ids(i, BatchStream::instruction);
    text.source = ids(i, BatchStream::source);
    return text;
  }

  std::minstd_rand random_{1};
  const BatchLayout layout_;
  const HostMemory memory_;
  HostBatch batch_;
};

// All objects that a rank needs to run steps. They are released in reverse order.
class StepTimer {
 public:
  StepTimer(const StepTimerParts& parts, const Config& requested, const TimedStep& step)
      : parts_(parts), config_(bare(requested, step)), text_(step.text) {}
  // Reserves the memory of this rank; not collective. Throws if there is not enough memory.
  void take_memory() {
    Device& device = *parts_.device;
    model_ = make_model(config_);
    ops_ = parts_.make_ops();
    optimizer_ = make_optimizer(config_.train, config_.steps.seed);
    plan_ = plan_memory(config_, *model_, parts_.sizes, parts_.device_bytes, {text_});
    arena_ = std::make_unique<Arena>(device, *plan_.arena);
    engine_ = make_engine(plan_, {.settings = config_, .model = model_.get(), .device = &device, .ops = ops_.get(),
                                  .groups = parts_.groups->groups(), .arena = arena_.get(),
                                  .optimizer = optimizer_.get(), .policy = nullptr, .spans = nullptr,
                                  .pixel_statistics = {}, .text_shapes = {text_}});
    check_host_memory(config_, *parts_.world, arena_->host_bytes());
    arena_->commit();
    batch_ = std::make_unique<RandomBatch>(device, model_->inputs(), config_, text_);
  }
  // By all ranks, as what follows of these.
  void connect() { expose_memory(config_.parallel, *parts_.groups, *arena_, engine_->store); }
  void disconnect() {
    parts_.device->synchronize();
    parts_.groups->withdraw();
  }
  void bind() { engine_->bind(); }
  void warm_up() { engine_->program->warm_up(arena_->scratch(), arena_->peer_scratch()); }  // called by all ranks
  void prepare() {
    const WeightContext context{.units = model_->units(), .store = &engine_->store, .strategy = engine_->strategy.get(),
                                .device = parts_.device, .ops = ops_.get(), .scratch = arena_->scratch()};
    init_weights(context, static_cast<uint64_t>(config_.steps.seed));
    engine_->program->prepare({text_});
  }
  // Runs `count` steps and returns the seconds per step. If count > 1, the first step is not measured. Called by all
  // ranks together.
  double run(int64_t count) {
    StepProgram& program = *engine_->program;
    int64_t begin = 0, end = 0;
    for (int64_t i = 0; i < count; ++i) {
      program.launch(batch_->batch(), 0);
      program.batch_copied(true);
    }
    StepResult result;
    for (int64_t i = 0; i < count; ++i) {
      program.finished(true, result);
      if (i == 0) begin = count > 1 ? result.end_ns : result.begin_ns;
      end = result.end_ns;
    }
    return 1e-9 * static_cast<double>(std::max<int64_t>(1, end - begin)) / static_cast<double>(std::max<int64_t>(1, count - 1));
  }

 private:
  const StepTimerParts& parts_;
  const Config config_;
  const TextShape text_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Optimizer> optimizer_;
  MemoryPlan plan_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RandomBatch> batch_;
};

// Runs `body`, which must not be collective, on each rank. Returns the same text on all ranks: the error of the first
// rank that failed, or "" if none failed.
template <class Body>
std::string failure_of(const World& world, const Body& body) {
  std::string failure;
  try {
    body();
  } catch (const std::exception& error) {
    failure = *error.what() ? error.what() : "unknown error";
  }
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const int64_t rank = -world.max(failure.empty() ? -kNone : -world.rank());
  return rank == kNone ? "" : world.from_rank(rank, failure);
}

CandidateTime failed(const std::string& failure) { return {0, brief(failure, 160), true}; }

// Times a candidate: everything from its first collective to its last.
CandidateTime time_connected(StepTimer& timer, const World& world, const TimedStep& step, const TimingAllowance& allowance,
                             const std::function<double()>& passed) {
  if (const std::string why = failure_of(world, [&] { timer.bind(); }); !why.empty()) return failed(why);
  timer.warm_up();
  if (const std::string why = failure_of(world, [&] { timer.prepare(); }); !why.empty()) return failed(why);
  if (passed() + kFewestSteps * step.estimate > allowance.left) return {0, "no time was left for its steps"};
  const auto steps = [&](int64_t count) { return world.max(timer.run(count)); };
  const double first = steps(1), room = std::min((allowance.share - passed()) / first, static_cast<double>(kMaxSteps));
  return {step.scale * steps(std::max<int64_t>(2, std::llround(std::floor(room))))};
}

// Returns a clock that starts now. It returns seconds, the maximum over all ranks. All ranks call this and the clock
// together.
ChoiceTiming::Clock clock_of(const StepTimerParts& parts) {
  return [&parts, start = parts.now()] { return parts.world->max(parts.now() - start); };
}

CandidateTime time_step(const StepTimerParts& parts, const Config& requested, const TimedStep& step, const TimingAllowance& allowance) {
  const World& world = *parts.world;
  const auto passed = clock_of(parts);
  auto timer = std::make_unique<StepTimer>(parts, requested, step);
  if (const std::string why = failure_of(world, [&] { timer->take_memory(); }); !why.empty()) return failed(why);
  try {
    timer->connect();
    const CandidateTime time = time_connected(*timer, world, step, allowance, passed);
    timer->disconnect();
    return time;
  } catch (const std::exception& error) {
    if (world.size() == 1) return failed(error.what());
    // Other ranks may wait in a collective for this rank, and its memory cannot be freed while its own work waits for
    // them. Therefore the process ends without freeing the memory.
    (void)timer.release();
    throw;
  }
}

}  // namespace

std::vector<CandidateTime> time_candidates(const StepTimerParts& parts, const Config& requested, const std::vector<TimedStep>& steps) {
  const auto passed = clock_of(parts);
  // Nothing can be compared if the steps of two candidates do not fit into the allowed time.
  if (steps.size() > 1 && kFewestSteps * (steps[0].estimate + steps[1].estimate) > ChoiceTiming::kSeconds)
    return std::vector<CandidateTime>(steps.size(), {0, "steps take too long"});
  return ChoiceTiming::run(
      steps.size(), passed, [&](size_t i, const TimingAllowance& allowance) { return time_step(parts, requested, steps[i], allowance); });
}

}  // namespace blipft
