// Choosing the weights; see weight_source.h.
#include "generate/weight_source.h"

#include <filesystem>

#include "blipft/error.h"
#include "checkpoint/run_id.h"
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

// The section of a run file that adapter_config.json in `folder` stands for.
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

WeightSource of_model(const Config& config, const std::string& folder) {
  WeightSource source{config, "", concat("the model in ", folder)};
  source.folder = source.config.model.path = folder;
  source.config.model.init = InitialWeights::pretrained;
  source.config.adapter = {};
  return source;
}

WeightSource of_adapter(const Config& config, const std::string& folder) {
  WeightSource source{config, "", concat("the adapter in ", folder, " on ", config.model.path), folder};
  source.config.adapter = adapter_of(folder);
  return source;
}

// What was trained is in the checkpoint, the rest where the run had it from.
WeightSource of_checkpoint(const Config& config, const std::string& folder) {
  const io::StateIndex index = io::read_index(folder);
  const Config run = config_from_values(index.config, folder + "/checkpoint.json", {});
  WeightSource source{config, folder, concat("the checkpoint in ", folder, " (after ", index.step, " steps)"), folder};
  source.config.model.path = run.model.path;
  source.config.model.init = run.model.init;
  source.config.adapter = run.adapter;
  source.config.adapter.path.clear();      // the checkpoint has them
  return source;
}

WeightSource of_base(const Config& config) {
  if (!config.adapter.path.empty()) return of_adapter(config, config.adapter.path);
  WeightSource source{config, "", concat(config.model.init == InitialWeights::random ? "random weights of the model in " : "the model in ",
                                         config.model.path)};
  source.config.adapter = {};
  return source;
}

WeightSource choose(const Config& config) {
  if (config.generate.weights == WeightsChoice::base) return of_base(config);
  if (config.generate.weights == WeightsChoice::automatic) {
    const std::string model = io::newest_saved(config.output.path, "model", "config.json");
    const std::string adapter = io::newest_saved(config.output.path, "adapter", "adapter_config.json");
    if (!model.empty()) return of_model(config, model);
    if (!adapter.empty()) return of_adapter(config, adapter);
    WeightSource source = of_base(config);
    source.missing = concat(config.output.path, std::filesystem::exists(config.output.path) ? " holds" : " does not exist, and so holds",
                            " no trained model");
    return source;
  }
  const std::string& asked = config.generate.weights.text;
  if (has_file(asked, "checkpoint.json")) return of_checkpoint(config, asked);
  if (has_file(asked, "adapter_config.json")) return of_adapter(config, asked);
  BLIPFT_USER_CHECK(has_file(asked, "config.json"), place_of(config, "generate.weights"), ": generate.weights: found \"",
                    brief(asked), "\", where none of config.json (a model), adapter_config.json (an adapter) and "
                    "checkpoint.json (a checkpoint) is; expected the folder of one of them");
  return of_model(config, asked);
}

}  // namespace

WeightSource weight_source(const Config& config) {
  WeightSource source = choose(config);
  source.config.model.freeze.clear();      // nothing is trained
  source.config.parallel.offload.clear();
  return source;
}

std::optional<TrainingRun> training_run_of(const WeightSource& source) {
  if (!source.checkpoint.empty()) {
    const std::string file = source.checkpoint + "/checkpoint.json";
    return TrainingRun{config_from_values(io::read_index(source.checkpoint).config, file, {}), file};
  }
  if (source.folder.empty()) return std::nullopt;
  const std::optional<io::Marker> marker = io::read_marker(io::open_folder(source.folder, true));
  const fs::path run = fs::path(source.folder) / "..";
  if (!marker || marker->run_id.empty() || run_of_record_file(run.string(), kConfigFile) != marker->run_id) return std::nullopt;
  const std::string file = io::absolute_path((run / kConfigFile).string());
  return TrainingRun{load_config(file, {}), file};
}

}  // namespace blipft
