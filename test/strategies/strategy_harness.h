// The model and data of the strategy tests: a tiny BLIP-2, synthetic samples that are numbered over the whole global batch,
// and a run of a few optimizer steps under one strategy, whose losses, gradients and weights are then compared.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "blipft/checkpoint.h"
#include "blipft/philox.h"
#include "blipft/pictures.h"
#include "checkpoint/saving.h"
#include "engine/engine.h"
#include "engine/settings.h"
#include "ops/bf16.h"
#include "plan/memory_plan.h"
#include "support/choice_of.h"
#include "support/golden_files.h"
#include "support/hold_gradients.h"

namespace blipft::testing {

/// MPI is started by the first test that asks, and ends with the process: the other tests run without it.
inline World& mpi_world() {
  static World world(nullptr, nullptr);
  return world;
}

/// The groups of so many ranks, made once: MPI_Comm_split spins, for a time slice and more where ranks share a core.
inline CommGroups& groups_of_world(const GroupSizes& sizes) {
  const World& world = mpi_world();
  static const std::unique_ptr<Device> device = make_cpu_device(1);
  static std::map<int64_t, CommGroups> made;
  const auto make_comm = [](const World& ranks, bool) { return make_mpi_comm(ranks); };
  return made.try_emplace(sizes.shard, world, sizes, *device, make_comm).first->second;
}

/// A training of a few steps on `samples` samples a step, before it is decided who computes what.
struct Job {
  Config config;
  int64_t samples = 12;                    ///< of one step, over all ranks and micro-batches
  int64_t steps = 3;
  int64_t equal_lengths = 0;               ///< > 0: every caption has so many tokens
  const StoragePolicy* policy = nullptr;   ///< null: HoldGradients
  /// Null: the family that config.model.path names.
  std::function<std::unique_ptr<Model>(const ModelSettings&)> family;

  std::unique_ptr<Model> make_model() const {
    const ModelSettings settings = model_settings(config);
    return family ? family(settings) : blipft::make_model(config.model.path, settings);
  }
  /// In place of the one that config names, which must have as many states in the same format: the plan is for that.
  std::function<std::unique_ptr<Optimizer>()> optimizer;
  bool evaluates = false;                  ///< each step's samples are evaluated before the step
  bool prepares = false;                   ///< every text shape's step is captured before the first step
  int64_t wrong_sample = -1;               ///< this sample gets another caption: what a comparison must notice
};

/// The ranks, and the samples of each.
struct Deal {
  std::string strategy = "single";
  std::string reshard = "always";
  int64_t prefetch_bytes = 0;              ///< 0: as the plan chooses
  int64_t accumulate = 1;
  int64_t shard_ranks = 0;                 ///< of a shard group; 0: all
};

/// The results of a run, complete on every rank.
struct Outcome {
  using Units = std::vector<std::vector<float>>;  // flat buffers, alignment gaps included
  std::vector<double> losses, norms;       ///< per step
  std::vector<double> evaluations;         ///< per step, if the job evaluates: mean over the labels of all ranks
  Units start, gradients, weights;         ///< before the first step; of the first step; after the last
  int64_t total_bytes = 0;                 ///< of the arena
  int64_t live_bytes = 0;                  ///< at its peak, without gaps and without room for loading
};

inline std::string model_directory(const std::string& name) { return golden_path(name); }

/// The tiny model `name` with GELU in place of the decoder's ReLU, in a folder that lasts as long as the process. At
/// the kink of ReLU a difference in the last bit decides whether a whole gradient term is there or not. Without
/// `biases` the decoder's linear layers have none; such a model starts from random weights.
class SmoothModels {
 public:
  SmoothModels() : root_(std::filesystem::temp_directory_path() / concat("blipft_strategy_test.", getpid())) {}
  ~SmoothModels() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  SmoothModels(const SmoothModels&) = delete;
  SmoothModels& operator=(const SmoothModels&) = delete;
  std::string directory(const std::string& name, bool biases) {
    const std::filesystem::path made = root_ / (name + (biases ? "" : ".no_biases"));
    if (std::filesystem::exists(made)) return made.string();
    std::filesystem::create_directories(made);
    for (const auto& entry : std::filesystem::directory_iterator(model_directory(name)))
      if (entry.path().filename().string().rfind("model", 0) == 0)
        std::filesystem::create_symlink(std::filesystem::absolute(entry.path()), made / entry.path().filename());
    nlohmann::json config = nlohmann::json::parse(read_text_file(model_directory(name) + "/config.json"));
    config["text_config"]["activation_function"] = "gelu";
    config["text_config"]["enable_bias"] = biases;
    std::ofstream(made / "config.json") << config;
    return made.string();
  }

 private:
  std::filesystem::path root_;
};

inline std::string smooth_model_directory(const std::string& name, bool biases = true) {
  static SmoothModels models;
  return models.directory(name, biases);
}

/// A job on the tiny model `name` with its stored weights; float32, AdamW.
/// eps is large beside the rounding noise of gradients that are zero in exact arithmetic (key biases): with a small
/// one, Adam divides that noise by itself and moves such weights by lr in a random direction.
inline Job make_job(const std::string& name, Precision precision = Precision::f32_true) {
  Job job;
  Config& c = job.config;
  c.model.path = name.rfind("blip2", 0) == 0 ? smooth_model_directory(name) : model_directory(name);
  c.data.max_text_tokens = 12;
  c.data.text_padding = TextPadding::max;
  c.train.precision = precision;
  c.train.lr = precision == Precision::f32_true ? 1e-3 : 1e-2;
  c.train.eps = 1e-3;
  c.train.dropout = false;
  c.steps.seed = 7;
  c.trace.enabled = false;
  return job;
}

/// Words of one sample of one step, the same whoever asks.
class SampleStream {
 public:
  SampleStream(int64_t step, int64_t sample) : sample_(sample), step_(static_cast<uint32_t>(step)) {}
  uint32_t next() {
    const Philox4 words = philox({static_cast<uint32_t>(sample_), step_, count_++, 0}, 0x5eed, 1);
    return words.x;
  }

 private:
  int64_t sample_;
  uint32_t step_, count_ = 0;
};

/// One rank's run of a job.
class TestRun {
 public:
  /// `world` null: this rank alone, on the whole global batch.
  TestRun(const Job& job, const Deal& deal, const World* world) : job_(job), ranks_(world ? world->size() : 1) {
    Config& c = job_.config;
    c.parallel.strategy = choice_of<StrategyKind>(deal.strategy);
    c.parallel.reshard = choice_of<ReshardPolicy>(deal.reshard);
    c.parallel.prefetch_bytes = deal.prefetch_bytes;
    c.steps.accumulate_grad_batches = deal.accumulate;
    c.steps.batch_size = job_.samples / (ranks_ * deal.accumulate);
    BLIPFT_CHECK(c.steps.batch_size * ranks_ * deal.accumulate == job_.samples, job_.samples,
                 " samples are not dealt evenly");
    if (job.evaluates) c.data.val_path = "validation";  // such a run plans evaluations
    device_ = make_cpu_device(1);          // more threads only wait for each other in a model this small
    ops_ = make_cpu_ops();
    const int64_t shard = deal.shard_ranks > 0 ? deal.shard_ranks : ranks_;
    const GroupSizes sizes{shard, ranks_ / shard};
    if (world) groups_ = &groups_of_world(sizes);
    else alone_ = make_self_comm(*device_);
    optimizer_ = job_.optimizer ? job_.optimizer() : make_optimizer(c.train, c.steps.seed);
    model_ = job_.make_model();
    hold_ = std::make_unique<HoldGradients>(c);
    const StoragePolicy* policy = job.policy ? job.policy : hold_.get();
    plan_ = plan_memory(c, *model_, sizes, 0, text_shapes(), policy);
    arena_ = std::make_unique<Arena>(*device_, *plan_.arena);
    engine_ = std::make_unique<Engine>(EngineParts{c, model_.get(), device_.get(), ops_.get(), groups(),
                                                   arena_.get(), optimizer_.get(), policy, nullptr,
                                                   ImageProcessor().statistics, plan_.text_shapes},
                                       plan_.strategy, plan_.sharded);
    engine_->strategy->learn_from(*plan_.engine->strategy);
    arena_->commit();
    poison();
    engine_->bind();
    if (job_.prepares) {
      engine_->program->warm_up(arena_->scratch(), arena_->peer_scratch());
      engine_->program->prepare(plan_.text_shapes);
    }
    if (c.model.init == InitialWeights::random) {
      init_weights(weight_context(), static_cast<uint64_t>(c.steps.seed));
    } else {
      checkpoint_ = std::make_unique<SafetensorsReader>(c.model.path);
      check_weights(model_->units(), *checkpoint_);
      load_weights(weight_context(), *checkpoint_, 1);
    }
    engine_->program->tune_deferred_products();
  }

  Outcome train() {
    Outcome outcome;
    outcome.total_bytes = arena_->total_bytes();
    outcome.live_bytes = arena_->peak_live_bytes();
    outcome.start = weights();
    const std::vector<TextShape> shapes = plan_.text_shapes;
    std::vector<char> block;
    for (int64_t step = 0; step < job_.steps; ++step) {
      // With several shapes the steps alternate between the two largest.
      const size_t back = shapes.size() > 1 ? static_cast<size_t>(step % 2) : 0;
      const TextShape& text = shapes[shapes.size() - 1 - back];
      if (job_.evaluates) outcome.evaluations.push_back(evaluate(step, text));
      engine_->program->launch(make_batch(step, text, block, job_.config.steps.accumulate_grad_batches),
                               job_.config.train.lr);
      StepResult result;
      BLIPFT_CHECK(engine_->program->finished(true, result) && result.step == step, "step ", step, " did not finish");
      outcome.losses.push_back(result.loss);
      outcome.norms.push_back(result.grad_norm);
      if (step == 0) outcome.gradients = gradients();
    }
    outcome.weights = weights();
    return outcome;
  }

  /// Saves the model as a run does at its end; the job asks for that. `world` is this run's.
  void save(const World& world, const std::string& directory) const {
    const Config& c = job_.config;
    save_weights(weight_context(), world, {directory, c.model.path, SaveSettings::of(c).front(), checkpoint_.get()});
  }

  const Model& model() const { return *model_; }
  ParameterStore& store() const { return engine_->store; }
  const Arena& arena() const { return *arena_; }

 private:
  static constexpr int64_t kCells = 4;

  Groups groups() const { return groups_ ? groups_->groups() : Groups(alone_.get()); }

  WeightContext weight_context() const {
    return {model_->units(), &engine_->store, engine_->strategy.get(), device_.get(), ops_.get(), arena_->scratch()};
  }

  // With room for a picture of kCells cells in each sample, and for one more.
  std::vector<TextShape> text_shapes() const {
    std::vector<TextShape> shapes = possible_text_shapes(job_.config, model_->inputs().has_source());
    const int64_t pictures = job_.config.steps.batch_size + 1;
    for (TextShape& shape : shapes)
      if (model_->inputs().patches) shape.pictures = {pictures * kCells, pictures, kCells, pictures * kCells};
    return shapes;
  }

  // NaNs wherever nothing was written yet. Left out are the ops' workspace and the room for loading, both large; the
  // steps themselves stay within the first megabytes.
  void poison() {
    const Tensor scratch = arena_->scratch(), peers = arena_->peer_block();
    const int64_t in_peers = peers ? peers.bytes() - arena_->peer_scratch().numel() : 0;
    const int64_t in_private = arena_->persistent_bytes() - in_peers;
    std::memset(scratch.data, 0xff, static_cast<size_t>(std::min<int64_t>(scratch.bytes(), 4 << 20)));
    std::memset(scratch.as<char>() - in_private, 0xff, static_cast<size_t>(in_private - kWorkspaceBytes));
    if (peers) std::memset(peers.data, 0xff, static_cast<size_t>(peers.bytes()));
  }

  // The samples of this rank: micro-batch m of rank r has [(m * world + r) * B, ... + B) of the global batch.
  HostBatch make_batch(int64_t step, const TextShape& text, std::vector<char>& block, int64_t micro_batches,
                       int64_t first = 0) const {
    const StepsSection& steps = job_.config.steps;
    HostBatch batch;
    batch.step = step;
    batch.layout = {model_->inputs(), micro_batches, steps.batch_size, text};
    block.assign(static_cast<size_t>(batch.layout.bytes()), 0);
    batch.block = block.data();
    std::vector<BatchSample> samples;
    for (int64_t m = first; m < first + micro_batches; ++m)
      for (int64_t b = 0; b < steps.batch_size; ++b)
        samples.push_back(make_sample(batch, step, (m * ranks_ + groups().all->rank()) * steps.batch_size + b,
                                      static_cast<int64_t>(samples.size())));
    BatchWriter(1, steps.loss_on_padding).write(batch.layout, samples, batch.block);
    return batch;
  }

  // The mean over the labels of the step's samples, micro-batch by micro-batch.
  double evaluate(int64_t step, const TextShape& text) {
    double loss = 0, labels = 0;
    std::vector<char> block;
    for (int64_t m = 0; m < job_.config.steps.accumulate_grad_batches; ++m) {
      engine_->program->launch_evaluation(make_batch(step, text, block, 1, m));
      StepResult result;
      BLIPFT_CHECK(engine_->program->finished(true, result) && result.kind == PassKind::evaluation, "no evaluation");
      loss += result.labels * result.loss;
      labels += result.labels;
    }
    return ranks_ == 1 ? loss / labels : mpi_world().sum(loss) / mpi_world().sum(labels);
  }

  /// Sample `sample` of the global batch: its pixels, as the batch's sample i, and its text.
  BatchSample make_sample(const HostBatch& batch, int64_t step, int64_t sample, int64_t i) const {
    SampleStream random(step, sample);
    const int64_t size = batch.layout.inputs().picture_size, t = batch.layout.text().tokens;
    uint8_t* pixels = BatchWriter::pixels(batch.layout, batch.block, i);
    for (int64_t p = 0; p < size * size * 3; ++p) pixels[p] = static_cast<uint8_t>(random.next() & 255);
    const int64_t length = job_.equal_lengths ? job_.equal_lengths : 2 + random.next() % (t - 1);
    const int32_t shift = sample == job_.wrong_sample ? 1 : 0;
    BatchSample made{{}, step * job_.samples + sample};
    for (int64_t k = 0; k < length; ++k) made.text.ids.push_back(4 + static_cast<int32_t>(random.next() % 40) + shift);
    made.text.is_label.assign(made.text.ids.size(), 1);
    const PatchInputs& patches = batch.layout.inputs().patches;
    if (patches && sample < job_.samples / 2 && length > kCells) {  // the last rank has no pictures
      static std::vector<uint8_t> noise;
      for (int64_t p = std::ssize(noise); p < (kCells + 32) * 3 * patches.of_cell() * patches.side * patches.side; ++p)
        noise.push_back(static_cast<uint8_t>(philox({static_cast<uint32_t>(p), 0, 0, 0}, 3, 1).x));
      made.text.pictures.push_back({length - kCells, 2, kCells / 2, noise.data() + sample});
    }
    if (const int64_t maximum = batch.layout.text().source_tokens; maximum > 0)
      for (int64_t k = 1 + random.next() % maximum; k > 0; --k)
        made.text.source.push_back(4 + static_cast<int32_t>(random.next() % 40) + shift);
    return made;
  }

  static std::vector<float> floats(const Tensor& tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.numel()));
    if (tensor.dtype == DType::f32) std::memcpy(values.data(), tensor.data, values.size() * 4);
    else for (size_t i = 0; i < values.size(); ++i) values[i] = bf16_to_float(tensor.as<uint16_t>()[i]);
    return values;
  }

  std::vector<float> whole(const Unit& unit, DType dtype, const std::function<void(const Tensor&)>& gather) const {
    const int64_t padded = store().shard(unit).padded;
    std::vector<char> memory(static_cast<size_t>(padded * dtype_size(dtype)));
    const Tensor full{memory.data(), dtype, {padded}};
    gather(full);
    std::vector<float> values = floats(full);
    bool zero = true;
    for (const auto& [first, end] : unit.gaps(padded))
      for (int64_t i = first; i < end; ++i) zero = zero && values[static_cast<size_t>(i)] == 0;
    CHECK_MESSAGE(zero, "gaps and padding of ", unit.name(), " stay zero");
    values.resize(static_cast<size_t>(unit.numel()));
    return values;
  }
  Outcome::Units weights() {
    Outcome::Units units;
    for (const Unit* unit : model_->units())
      units.push_back(whole(*unit, store().weight_dtype(*unit), [&](const Tensor& full) {
        const int64_t bytes = engine_->strategy->gather_scratch_bytes(*unit);
        std::vector<char> scratch(static_cast<size_t>(bytes));
        engine_->strategy->gather_weights(*unit, full, {scratch.data(), DType::u8, {bytes}}, device_->compute_stream());
      }));
    return units;
  }
  Outcome::Units gradients() {
    Outcome::Units units;
    for (const Unit* unit : model_->units()) {
      const Tensor mine = store().transient_gradients() ? Tensor{} : store().gradient(*unit);
      units.push_back(!mine ? std::vector<float>{} : whole(*unit, mine.dtype, [&](const Tensor& full) {
        if (store().shards() > 1) groups().shard->all_gather(mine, full, device_->comm_stream());
        else std::memcpy(full.data, mine.data, static_cast<size_t>(mine.bytes()));
      }));
    }
    return units;
  }

  Job job_;
  int64_t ranks_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  CommGroups* groups_ = nullptr;           // of all ranks, else
  std::unique_ptr<Comm> alone_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<HoldGradients> hold_;    // where the job has no policy
  MemoryPlan plan_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<SafetensorsReader> checkpoint_;
};

/// Trains on `world`, or alone. An exception on one rank would leave the others waiting: it ends the world.
inline Outcome train_on(const World* world, const Job& job, const Deal& deal) {
  try {
    return TestRun(job, deal, world).train();
  } catch (const std::exception& error) {
    if (mpi_world().size() == 1) throw;
    mpi_world().abort(error.what(), 1);
  }
}
/// Rank 0's outcome on every rank.
inline void broadcast(Outcome& outcome) {
  const auto send = [](auto& values) {
    auto count = static_cast<int64_t>(values.size());
    mpi_world().broadcast(&count, sizeof count, 0);
    values.resize(static_cast<size_t>(count));
    mpi_world().broadcast(values.data(), count * static_cast<int64_t>(sizeof values[0]), 0);
  };
  for (auto* numbers : {&outcome.losses, &outcome.norms, &outcome.evaluations}) send(*numbers);
  for (Outcome::Units* units : {&outcome.start, &outcome.gradients, &outcome.weights}) {
    auto count = static_cast<int64_t>(units->size());
    mpi_world().broadcast(&count, sizeof count, 0);
    units->resize(static_cast<size_t>(count));
    for (std::vector<float>& unit : *units) send(unit);
  }
  for (int64_t* bytes : {&outcome.total_bytes, &outcome.live_bytes}) mpi_world().broadcast(bytes, sizeof *bytes, 0);
}
/// One rank alone on the whole batch: rank 0, since ranks often share a few cores.
inline Outcome train_alone(const Job& job, int64_t accumulate = 1) {
  Outcome outcome;
  if (mpi_world().rank() == 0) outcome = train_on(nullptr, job, {"single", "always", 0, accumulate});
  broadcast(outcome);
  return outcome;
}
/// All ranks of the world.
inline Outcome train_together(const Job& job, const Deal& deal) { return train_on(&mpi_world(), job, deal); }

/// Largest relative differences between two runs.
struct Distance {
  double loss = 0, norm = 0;
  double gradient = 0;                     ///< worst unit: ||a - b|| / ||b||
  /// Worst unit: (||a - b|| - u ||b||) / ||b - start||, relative to the way the weights went. The subtracted part is
  /// what the last rounding of the stored weights alone may do; u is the unit roundoff of their dtype.
  double weight = 0;
  std::string gradient_unit, weight_unit;
};

inline double norm_of_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
  return std::sqrt(sum);
}

inline Distance distance(const Outcome& a, const Outcome& b, const Job& job) {
  const std::unique_ptr<Model> model = job.make_model();
  const double u = job.config.train.precision == Precision::bf16_true ? 0x1p-8 : 0x1p-24;
  Distance d;
  const auto relative = [](double difference, double size) {
    return difference == 0 ? 0.0 : size > 0 ? difference / size : INFINITY;
  };
  const auto see = [](double& worst, double value) { if (!(value <= worst)) worst = value; };
  for (size_t i = 0; i < b.losses.size(); ++i) {
    see(d.loss, relative(std::fabs(a.losses.at(i) - b.losses[i]), std::fabs(b.losses[i])));
    see(d.norm, relative(std::fabs(a.norms.at(i) - b.norms[i]), b.norms[i]));
  }
  for (const Unit* unit : model->units()) {
    const size_t i = static_cast<size_t>(unit->index);
    const std::vector<float> none(b.gradients[i].size()), zeros(b.weights[i].size());
    const double gradient =
        relative(norm_of_difference(a.gradients[i], b.gradients[i]), norm_of_difference(b.gradients[i], none));
    if (!(gradient <= d.gradient)) d.gradient = gradient, d.gradient_unit = unit->name();
    const double rounding = u * norm_of_difference(b.weights[i], zeros);
    const double weight = relative(std::max(0.0, norm_of_difference(a.weights[i], b.weights[i]) - rounding),
                                   norm_of_difference(b.weights[i], b.start[i]));
    if (!(weight <= d.weight)) d.weight = weight, d.weight_unit = unit->name();
  }
  return d;
}

/// Bit for bit. (Weights are compared as floats, into which bf16 goes without loss.)
inline bool same_bits(const Outcome::Units& a, const Outcome::Units& b) {
  if (a.size() != b.size()) return false;
  for (size_t u = 0; u < a.size(); ++u)
    if (a[u].size() != b[u].size() || (!a[u].empty() && std::memcmp(a[u].data(), b[u].data(), a[u].size() * 4) != 0))
      return false;
  return true;
}

/// Returns true if every rank of the world has the same weights, losses and norms.
inline bool same_on_all_ranks(const Outcome& outcome) {
  uint64_t digest = 0xcbf29ce484222325u;   // FNV-1a
  const auto add = [&](const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) digest = (digest ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3u;
  };
  for (const auto& unit : outcome.weights) add(unit.data(), unit.size() * 4);
  add(outcome.losses.data(), outcome.losses.size() * 8);
  add(outcome.norms.data(), outcome.norms.size() * 8);
  const int64_t value = static_cast<int64_t>(digest >> 1);
  const int64_t largest = mpi_world().max(value), smallest = -mpi_world().max(-value);
  return largest == smallest;
}

}  // namespace blipft::testing
