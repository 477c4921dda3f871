// A rank that generates texts; see generation.h.
#include "generate/generation.h"

#include <algorithm>
#include <cstdio>

#include "agreement/same_run.h"
#include "base/memory_text.h"
#include "blipft/pictures.h"
#include "checkpoint/training_state.h"
#include "config/config_facts.h"
#include "engine/placement.h"
#include "engine/run_data.h"
#include "engine/settings.h"
#include "loading/picture_reader.h"
#include "plan/generation_plan.h"
#include "weights/adapter_files.h"
#include "weights/weights.h"

namespace blipft {

namespace {

// Throws AgreedError if the names, sizes or headers of the weight files differ between ranks.
void check_same_source(const WeightSource& source, const World& world) {
  if (world.size() == 1) return;
  check_same_config(source.config, world);
  check_same_files(source.config, world);
  Facts files;
  world.run_agreeing_on_errors([&] { files = template_facts(source.config, chosen_chat_template(source.config.data)); });
  if (!source.checkpoint.empty())          // the index has the checksums of all files
    files.push_back(whole_file_fact("the checkpoint's index", source.checkpoint + "/checkpoint.json"));
  compare_facts(world, files, "give all machines the same files");
}

}  // namespace

Generation::Generation(const GenerationSource& requested, const World& world) : world_(world) {
  world_.run_agreeing_on_errors([&] {
    model_ = std::make_unique<GenerationModel>(requested);
    if (inputs().has_picture()) pixel_statistics_ = ImageProcessor::from_directory(config().model.path).statistics;
    if (const auto pictures = open_picture_reader(config(), inputs())) pixel_statistics_ = pictures->statistics();
    check_device(config(), world_);
  });
  const WeightSource& source = model_->source;
  check_same_source(source, world_);
  const std::string of_base = source.missing.empty() ? "" : concat(source.missing, ": these are the weights of ", config().model.path,
                                                                   " as they are (generate.weights=base asks for them)");
  for (const std::string& warning : {unused_sampling(requested.config, settings()), of_base})
    if (world_.rank() == 0 && !warning.empty()) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  world_.run_agreeing_on_errors([&] {
    device_ = make_device(config(), world_);
    device_->bind_thread();
    ops_ = make_ops(config(), *device_, gemm_table_of_user());
    self_ = make_self_comm(*device_);
  });
}

Generation::~Generation() {
  engine_.reset();
  if (device_) device_->synchronize();
}

void Generation::choose(const TextsToGenerate& work) {
  const bool gpu = device_->kind() == DeviceKind::cuda;
  const int64_t free = gpu ? -world_.max(-device_->memory().free) : 0;
  bool found = false;
  plan_ = choose_generation(config(), *model_->model,
                            {settings(), work, world_.size(), gpu,
                             [&](const MemoryPlan& plan) { return !gpu || plan.arena->total_bytes() <= free; }},
                            found);
  if (found) return;
  const int64_t minimum = plan_.arena->total_bytes();
  throw UserError(concat("generation needs ", memory_text(minimum), " of GPU memory (", memory_text(plan_.engine->decoder->cache_bytes()),
                         " of it keys and values of ", slots(), " texts of ", plan_.decoding->max_ids,
                         " tokens), and ", memory_text(free), " is free on ", device_->name(),
                         ". What helps: a smaller generate.batch_size or generate.max_new_tokens, model.quantize=nf4, "
                         "train.precision=bf16-true, or more GPUs"));
}

void Generation::load(const TextsToGenerate& work) {
  world_.run_agreeing_on_errors([&] { choose(work); });
  const bool cut = plan_.strategy == StrategyKind::fsdp;
  if (cut) groups_ = make_groups(config(), world_, GroupSizes(world_.size()), *device_);
  world_.run_agreeing_on_errors([&] {
    arena_ = std::make_unique<Arena>(*device_, *plan_.arena);
    engine_ = make_engine(plan_,
                          {.settings = config(), .model = model_->model.get(), .device = device_.get(), .ops = ops_.get(),
                           .groups = cut ? groups_->groups() : Groups(self_.get()), .arena = arena_.get(),
                           .pixel_statistics = pixel_statistics_, .trains = false},
                          std::max(0, tokenizer().pad_id()));
    arena_->commit();
  });
  if (cut) expose_memory({.direct_gathers = config().parallel.direct_gathers, .direct_reductions = false}, *groups_, *arena_, engine_->store);
  world_.run_agreeing_on_errors([&] {
    engine_->bind();
    load_weights();
  });
  check_same_weights(config(), world_, std::exchange(weight_files_, {}), std::min<int64_t>(4, cores_of_a_rank(world_)));
}

void Generation::load_weights() {
  const WeightContext context{.units = model_->model->units(), .store = &engine_->store,
                              .strategy = engine_->strategy.get(), .device = device_.get(), .ops = ops_.get(),
                              .scratch = arena_->scratch()};
  const bool random = config().model.init == InitialWeights::random;
  init_weights(context, static_cast<uint64_t>(config().steps.seed), random ? Filled::all : Filled::fresh);
  if (!random) {
    const auto reader = std::make_shared<const SafetensorsReader>(config().model.path);
    check_weights(model_->model->units(), *reader);
    blipft::load_weights(context, *reader, 8);
    weight_files_.push_back({"model file", reader});
  }
  if (auto adapters = load_adapters(context, {config().model, config().adapter, config()})) weight_files_.push_back({"adapter file", std::move(adapters)});
  if (!model_->source.checkpoint.empty()) load_trained_weights(context, model_->source.checkpoint);
}

void Generation::run(const GeneratorCalls& requested) {
  GeneratorCalls calls = requested;
  if (plan_.strategy == StrategyKind::fsdp) calls.any = [this](bool mine) { return any(mine); };
  calls.round = [this] { begin_round(Activity::Phase::generation); };
  Generator generator(*engine_->decoder, settings().returned, device_->kind() != DeviceKind::cuda);
  generator.run(calls);
  tokens_ += generator.tokens();
  step_ms_ = generator.step_milliseconds();
}

std::vector<TextLikelihood> Generation::score(std::span<const BatchSample> texts, std::span<const uint8_t* const> pixels) {
  begin_round(Activity::Phase::scoring);
  return engine_->decoder->score(texts, pixels);
}

void Generation::begin_round(Activity::Phase phase) {
  const Activity::State now = world_.activity().state();
  world_.activity().set({phase, Activity::RankOperation::host, now.phase == phase ? now.step + 1 : 0, -1});
}

std::string Generation::text() const {
  return concat(model_->source.text, ", ", device_->name(), ", ", world_.size(), world_.size() == 1 ? " rank" : " ranks",
                plan_.strategy == StrategyKind::fsdp ? " (weights cut over them)" : "", ", ", slots() / plan_.decoding->beams,
                " texts at once, ", memory_text(arena_->total_bytes()));
}

}  // namespace blipft
