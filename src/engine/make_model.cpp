// Makes the model of a run; see settings.h.
#include <algorithm>
#include <filesystem>

#include "base/nearest.h"
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
void check_model_folder(const EngineSettings& config) {
  namespace fs = std::filesystem;
  std::error_code ignored, error;
  const fs::path folder = config.model.path;
  const char* const remedy = "give model.path=FOLDER, with config.json, weights in safetensors and the tokenizer, as hf "
                             "download or save_pretrained leaves it";
  const std::string found = concat(location_of(config, "model.path"), ": model.path: found \"", brief(config.model.path), "\"");
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

void check_freeze(const EngineSettings& config, const std::vector<std::string>& groups) {
  const std::vector<std::string>& frozen = config.model.freeze;  // none is listed twice
  const std::string location = location_of(config, "model.freeze") + ": model.freeze: ";
  for (const std::string& name : frozen) {
    const bool known = std::find(groups.begin(), groups.end(), name) != groups.end();
    const std::string near = nearest_name(name, groups);
    BLIPFT_USER_CHECK(known, location, "found \"", name, "\", expected a list of ", join_names(groups),
                      near.empty() ? "" : "; did you mean " + near + "?");
  }
  const bool all = config.adapter.kind == AdapterKind::none && frozen.size() == groups.size();  // adapters freeze the rest anyway
  BLIPFT_USER_CHECK(groups.empty() || !all, location,
                    "every part of the model is frozen, so nothing would be trained; remove one");
}

RunModel::RunModel(const EngineSettings& config) {
  check_model_folder(config);
  make_ = read_model(config.model.path);
  untied_head_ = config.model.init == InitialWeights::pretrained && has_own_head(config.model.path);
}

std::unique_ptr<Model> RunModel::make(const EngineSettings& config, ModelSettings settings) const {
  settings.untied_head = untied_head_;
  std::unique_ptr<Model> model = make_(settings);
  std::vector<std::string> groups;
  for (const ParameterGroup& group : model->groups())
    if (group.name != kAdapterGroup) groups.push_back(group.name);
  check_freeze(config, groups);
  check_storage(config, *model);
  return model;
}

}  // namespace blipft
