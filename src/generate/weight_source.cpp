// Choosing the weights; see weight_source.h.
#include "generate/weight_source.h"

#include <cstdio>
#include <filesystem>

#include "agreement/run_id.h"
#include "blipft/config_rules.h"
#include "blipft/error.h"
#include "io/json.h"
#include "io/marker.h"
#include "io/paths.h"
#include "io/saved_model.h"
#include "io/state_files.h"

namespace blipft {

namespace {

namespace fs = std::filesystem;

bool has_file(const std::string& folder, const char* name) {
  std::error_code ignored;
  return fs::exists(fs::path(folder) / name, ignored);
}

// Returns the adapter section that corresponds to adapter_config.json in `folder`.
AdapterSection adapter_of(const std::string& folder) {
  const std::string file = folder + "/adapter_config.json";
  const nlohmann::json saved = io::read_json_file(file);
  BLIPFT_USER_CHECK(saved.is_object(), file, ": found ", io::brief(saved), ", expected an object");
  AdapterSection adapter;
  adapter.kind = AdapterKind::lora;
  adapter.path = folder;
  const auto number = [&](const char* key, double fallback) {
    const auto found = saved.find(key);
    if (found == saved.end() || found->is_null()) return fallback;
    BLIPFT_USER_CHECK(found->is_number() && found->get<double>() > 0, file, ": ", key, ": found ", io::brief(*found),
                      ", expected a number > 0");
    return found->get<double>();
  };
  adapter.r = static_cast<int64_t>(number("r", 8));
  adapter.alpha = number("lora_alpha", 8);
  adapter.rslora = saved.value("use_rslora", nlohmann::json(false)) == true;
  const auto targets = saved.find("target_modules");
  BLIPFT_USER_CHECK(targets != saved.end() && targets->is_array() && !targets->empty(), file,
                    ": target_modules: found ", targets == saved.end() ? "nothing" : io::brief(*targets),
                    ", expected a list of modules' names");
  adapter.targets.clear();
  for (const nlohmann::json& target : *targets) {
    BLIPFT_USER_CHECK(target.is_string(), file, ": target_modules: found ", io::brief(target), ", expected a name");
    adapter.targets.push_back(target.get<std::string>());
  }
  return adapter;
}

// The folder of the weights and the run that trained them.
struct FoundWeights {
  enum class Kind { base, model, adapter, checkpoint } kind = Kind::base;
  std::string folder;                      // empty if a base model without adapter generates
  std::string missing = {};                // see WeightSource
  int64_t step = 0;                        // step of a checkpoint
  std::optional<TrainingRun> run = {};
};
using Kind = FoundWeights::Kind;

FoundWeights found_base(const Config& config, const std::string& missing = "") {
  const std::string& adapter = config.adapter.path;
  return {adapter.empty() ? Kind::base : Kind::adapter, adapter, missing};
}

FoundWeights find_weights(const Config& config) {
  if (config.generate.weights == WeightsChoice::base) return found_base(config);
  if (config.generate.weights == WeightsChoice::automatic) {
    const std::string& output = config.output.path;
    const std::string model = io::newest_saved(output, "model", "config.json");
    const std::string adapter = io::newest_saved(output, "adapter", "adapter_config.json");
    if (!model.empty()) return {Kind::model, model};
    if (!adapter.empty()) return {Kind::adapter, adapter};
    return found_base(config, concat(output, fs::exists(output) ? " holds" : " does not exist, and so holds", " no trained model"));
  }
  const std::string& named = config.generate.weights.text;
  if (has_file(named, "checkpoint.json")) return {Kind::checkpoint, named};
  if (has_file(named, "adapter_config.json")) return {Kind::adapter, named};
  BLIPFT_USER_CHECK(has_file(named, "config.json"), location_of(config, "generate.weights"), ": generate.weights: found \"",
                    brief(named), "\", where none of config.json (a model), adapter_config.json (an adapter) and "
                    "checkpoint.json (a checkpoint) is; expected the folder of one of them");
  return {Kind::model, named};
}

// A checkpoint records its run. A saved model or adapter belongs to the run of the config.yaml next to it if both have
// the same id.
void read_run(FoundWeights& found) {
  if (found.kind == Kind::checkpoint) {
    const io::StateIndex index = io::read_index(found.folder);
    const std::string file = found.folder + "/checkpoint.json";
    found.step = index.step;
    found.run = {config_from_values(index.config, file, {}), file};
  }
  if (found.kind == Kind::checkpoint || found.folder.empty()) return;
  const std::optional<io::Marker> marker = io::read_marker(io::open_folder(found.folder, true));
  const fs::path run = fs::path(found.folder) / "..";
  if (!marker || marker->run_id.empty() || run_of_record_file(run.string(), kConfigFile) != marker->run_id) return;
  const std::string file = io::absolute_path((run / kConfigFile).string());
  found.run = {load_config(file, {}), file};
}

bool is_another_folder(const std::string& folder, const std::string& than) {
  std::error_code error;
  return fs::is_directory(folder, error) && !fs::equivalent(folder, than, error);
}

void take_settings_of_run(Config& config, const FoundWeights& found) {
  constexpr const char* kSplitKey = "data.val_split_fraction";  // see with_held_out_of_run()
  for (const std::string& key : keys_of_a_run())
    if (key != kSplitKey) take_from_run(config, found.run->config, key);
  if (found.kind == Kind::adapter && is_another_folder(found.run->config.model.path, config.model.path))
    take_from_run(config, found.run->config, "model.path");
}

WeightSource source_of(const Config& config, const FoundWeights& found) {
  const std::string& folder = found.folder;
  WeightSource source{.config = config, .checkpoint = "", .text = "", .folder = folder, .missing = found.missing, .run = found.run};
  ModelSection& model = source.config.model;
  AdapterSection& adapter = source.config.adapter;
  model.freeze.clear();                    // nothing is trained
  source.config.parallel.offload.clear();
  switch (found.kind) {
    case Kind::base:
      source.text = concat(model.init == InitialWeights::random ? "random weights of the model in " : "the model in ", model.path);
      adapter = {};
      break;
    case Kind::model:
      source.text = concat("the model in ", folder);
      model.path = folder, model.init = InitialWeights::pretrained;
      adapter = {};
      break;
    case Kind::adapter:
      source.text = concat("the adapter in ", folder, " on ", model.path);
      adapter = adapter_of(folder);
      break;
    case Kind::checkpoint:                 // it has the trained weights; the others come from the run's model.path
      source.checkpoint = folder;
      source.text = concat("the checkpoint in ", folder, " (after ", found.step, " steps)");
      model.path = found.run->config.model.path, model.init = found.run->config.model.init;
      adapter = found.run->config.adapter;
      adapter.path.clear();                // the checkpoint has its weights
      break;
  }
  return source;
}

// Returns "data.val_split_fraction=0.1 of train.seed=7".
std::string split_text(const Config& config) {
  if (!config.data.val_path.empty()) return concat("data.val_path=", config.data.val_path);
  const std::string fraction = concat("data.val_split_fraction=", config.data.val_split_fraction);
  return config.data.val_split_fraction == 0 ? fraction : concat(fraction, " of train.seed=", config.steps.seed);
}

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code error;
  return one == other || std::filesystem::equivalent(one, other, error);
}

}  // namespace

GenerationSource generation_source(Config config) {
  FoundWeights found = find_weights(config);
  read_run(found);
  config.notes.clear();
  if (found.run) take_settings_of_run(config, found);
  WeightSource weights = source_of(config, found);
  return {std::move(config), std::move(weights)};
}

Config with_held_out_of_run(Config config, const WeightSource& weights) {
  config.notes.clear();
  if (!config.generate.path.empty() || !config.data.val_path.empty()) return config;
  const std::optional<TrainingRun>& run = weights.run;
  if (!run || split_text(run->config) == split_text(config)) return config;
  config.notes.push_back(concat("what is scored is what the run of ", weights.folder, " held out: ", run->file, " has ",
                                split_text(run->config), ", and this command ", split_text(config),
                                "; generate.path names other samples"));
  config.data.val_path = run->config.data.val_path;
  config.data.val_split_fraction = run->config.data.val_split_fraction;
  config.steps.seed = run->config.steps.seed;
  for (const char* key : {"data.val_path", "data.val_split_fraction", "train.seed"}) config.locations[key] = run->file;
  return config;
}

void print_samples(const Config& config, const WeightSource& weights) {
  print_notes(config);
  if (!config.generate.path.empty() || validates(config)) return;
  const std::optional<TrainingRun>& run = weights.run;
  if (!run || validates(run->config) || !is_same_file(config.data.path, run->config.data.path)) return;
  std::fprintf(stderr, "warning: %s: these samples trained the weights in %s, since the run held none out (%s). Name "
               "other samples in generate.path.\n",
               config.data.path.c_str(), weights.folder.c_str(), run->file.c_str());
}

}  // namespace blipft
