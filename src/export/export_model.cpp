// --export: makes a model folder from a checkpoint on the CPU. Trained weights come from the checkpoint, frozen weights
// from the model folder of the run.
#include "export/export_model.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "agreement/output_folder.h"
#include "agreement/run_id.h"
#include "blipft/config.h"
#include "checkpoint/content_check.h"
#include "checkpoint/resume.h"
#include "checkpoint/saving.h"
#include "checkpoint/training_state.h"
#include "engine/settings.h"
#include "engine/storage_policy.h"
#include "io/state_files.h"
#include "liveness/launch_watch.h"
#include "weights/adapter_files.h"

namespace blipft {

namespace {

// Returns the run's config, reduced to what saving needs: one rank, no optimizer states.
Config export_config(const io::StateIndex& index, const std::string& folder,
                     const std::vector<std::string>& overrides) {
  Config config = config_from_values(index.config, folder + "/checkpoint.json", overrides);
  TrainSection plain;
  plain.precision = config.train.precision;
  plain.optim = "sgd";
  config.train = plain;
  config.steps = {.seed = config.steps.seed};
  config.parallel = {};
  config.checkpoint = {};                  // the run that wrote them may still have their folder
  config.parallel.strategy = StrategyKind::single;
  config.output.save_model = true;
  const auto says_overwrite = [](const std::string& text) { return text.rfind("output.overwrite=", 0) == 0; };
  if (std::none_of(overrides.begin(), overrides.end(), says_overwrite)) config.output.overwrite = false;  // the default
  return config;
}

// The objects that hold the weights of one rank on the CPU, without a step program.
struct Holder {
  explicit Holder(const Config& of)
      : config(of), model(make_model(config)), optimizer(make_optimizer(config.train, config.steps.seed)),
        policy(make_storage_policy(config)),
        store({.device = device.get(), .ops = ops.get(), .arena = &arena, .units = model->units(),
               .types = precision_types(config), .optimizer = optimizer.get(), .policy = policy.get(),
               .used_once = true}),
        strategy(make_strategy(StrategyKind::single, {
            .device = device.get(), .ops = ops.get(), .groups = Groups(self.get()), .arena = &arena, .store = &store,
            .units = model->units()}, {})) {
    int64_t scratch = std::max(loading_scratch_bytes(), init_scratch_bytes());
    for (const SaveSettings& settings : SaveSettings::of(config))
      scratch = std::max(scratch, saving_scratch_bytes(model->units(), store, *strategy, settings));
    arena.plan(scratch);
    arena.commit();
    store.bind();
    strategy->bind();
  }
  WeightContext context() { return {.units = model->units(), .store = &store, .strategy = strategy.get(),
                                    .device = device.get(), .ops = ops.get(), .scratch = arena.scratch()}; }

  const Config& config;
  std::unique_ptr<Device> device = make_cpu_device(0);
  std::unique_ptr<Ops> ops = make_cpu_ops();
  std::unique_ptr<Comm> self = make_self_comm(*device);
  Arena arena{*device};
  std::unique_ptr<Model> model;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<StoragePolicy> policy;
  ParameterStore store;
  std::unique_ptr<Strategy> strategy;
};

// Checks that the files of the frozen weights are those that the run was trained with.
void check_frozen(const Config& config, const ResumePoint& point, const WeightContext& frozen,
                  const std::shared_ptr<const SafetensorsReader>& reader) {
  if (!frozen.units.empty()) (void)check_same_content(config, point, content_facts({"model file", reader}, 4));
}

// Returns the newest complete checkpoint if `folder` is a run's folder, else `folder`.
std::string checkpoint_in(const std::string& folder) {
  if (std::filesystem::exists(folder + "/checkpoint.json") || !std::filesystem::is_directory(folder + "/checkpoints")) return folder;
  const std::string newest = newest_checkpoint(folder + "/checkpoints");
  BLIPFT_USER_CHECK(!newest.empty(), folder, "/checkpoints: no whole checkpoint is there to export; an adapter that is saved is ",
                    "merged by a run with output.save_merged=true, or by PEFT's merge_and_unload()");
  return newest;
}

}  // namespace

void export_model(const std::string& requested, const std::vector<std::string>& overrides, const World& world) {
  BLIPFT_USER_CHECK(world.size() == 1, "--export runs on one rank, but there are ", world.size(),
                    "; start it without mpirun");
  BLIPFT_USER_CHECK(std::any_of(overrides.begin(), overrides.end(),
                                [](const std::string& text) { return text.rfind("output.path=", 0) == 0; }),
                    "--export ", requested, " needs output.path=FOLDER, where model/ (or adapter/) is to be written");
  LaunchWatch::together();
  const std::string folder = checkpoint_in(requested);
  const io::StateIndex index = io::read_index(folder);
  if (folder != requested) std::printf("checkpoint %s, after %lld steps\n", folder.c_str(), static_cast<long long>(index.step));
  const Config config = export_config(index, folder, overrides);
  const OutputFolder output(config, world);
  const std::vector<std::string> targets = output_names(config).saved;
  for (const std::string& target : targets)
    BLIPFT_USER_CHECK(config.output.overwrite || !std::filesystem::exists(target), "output.path: ", target,
                      " is there already; choose another output.path, or replace it with output.overwrite=true");
  Holder holder(config);
  const WeightContext context = holder.context();
  const bool random = config.model.init == InitialWeights::random;
  std::shared_ptr<const SafetensorsReader> checkpoint;
  init_weights(context, static_cast<uint64_t>(config.steps.seed), random ? Filled::all : Filled::fresh);
  if (!random) {
    checkpoint = std::make_shared<const SafetensorsReader>(config.model.path);
    check_weights(context.units, *checkpoint);
    load_weights(frozen_of(context), *checkpoint, 8);
    check_frozen(config, {folder, index}, frozen_of(context), checkpoint);
  }
  restore_state(context, index, folder, 4);
  const std::vector<SaveSettings> all = SaveSettings::of(config);
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string saved = save_weights(context, world, {
        .directory = targets[i], .source = config.model.path, .settings = all[i], .checkpoint = checkpoint.get(),
        .adapter_config = adapter_config({config.model, config.adapter, config}, context.units), .chat_template = chosen_chat_template(config.data),
        .origin = {run_id_of(index.run), index.step}});
    std::printf("model      %s (after %lld steps)\n", saved.c_str(), static_cast<long long>(index.step));
  }
}

}  // namespace blipft
