// Makes the model of a run; see settings.h.
#include <filesystem>

#include "blipft/error.h"
#include "blipft/family.h"
#include "engine/settings.h"
#include "engine/storage_policy.h"
#include "weights/adapter_files.h"
#include "weights/hub_cache.h"
#include "weights/own_head.h"

namespace blipft {

namespace {

// Checks that model.path is a model folder. A wrong path is the most common error in a new run file.
void check_model_folder(const Config& config) {
  namespace fs = std::filesystem;
  std::error_code ignored, error;
  const fs::path folder = config.model.path;
  const char* const remedy = "give model.path=FOLDER, with config.json, weights in safetensors and the tokenizer, as hf "
                             "download or save_pretrained leaves it";
  const std::string found = concat(place_of(config, "model.path"), ": model.path: found \"", brief(config.model.path), "\"");
  const auto check_readable = [&](const fs::path& path) {
    BLIPFT_USER_CHECK(!error, found, ", but ", path.string(), " cannot be looked at: ", error.message(),
                      "; you need the right to read the folder and to enter it and those around it");
  };
  const bool there = fs::exists(folder, error);
  check_readable(folder);
  BLIPFT_USER_CHECK(there && fs::is_directory(folder, ignored), found, ", and ", fs::absolute(folder, ignored).string(),
                    " is not a directory; ",
                    is_hub_name(config.model.path) ? hub_advice(config.model.path) + "or " : "", remedy);
  const bool is_model = fs::exists(folder / "config.json", error);
  check_readable(folder / "config.json");
  if (!is_model) refuse_adapter_as_model(found, config.model.path);
  BLIPFT_USER_CHECK(is_model, found, ", where no config.json is; ", remedy);
}

}  // namespace

RunModel::RunModel(const Config& config) {
  check_model_folder(config);
  make_ = read_model(config.model.path);
  untied_head_ = config.model.init == InitialWeights::pretrained && has_own_head(config.model.path);
}

std::unique_ptr<Model> RunModel::make(const Config& config, ModelSettings settings) const {
  settings.untied_head = untied_head_;
  std::unique_ptr<Model> model = make_(settings);
  std::vector<std::string> groups;
  for (const ParameterGroup& group : model->groups())
    if (group.name != kAdapterGroup) groups.push_back(group.name);
  check_freeze(config, groups);
  check_storage(config, *model);
  return model;
}

void check_saved_parts(const Config& config) {
  const bool saves = config.output.save_model && config.adapter.kind == AdapterKind::none && config.output.save == SavedTensors::all;
  if (!saves || config.model.init == InitialWeights::pretrained) return;
  const std::vector<std::string>& beside = family_of(config.model.path).kept_tensors;
  BLIPFT_USER_CHECK(beside.empty(), place_of(config, "model.init"),
                    ": model.init: found random, but the saved model of ", config.model.path, " has parts that are not trained here (",
                    beside.front(), "...) and come from its weights; set model.init: pretrained, or output.save: trained");
}

}  // namespace blipft
