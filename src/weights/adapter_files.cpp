// Adapters in PEFT's format; see adapter_files.h.
#include "weights/adapter_files.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "blipft/family.h"
#include "io/json.h"
#include "io/paths.h"
#include "weights/hub_cache.h"
#include "weights/stored_tensors.h"

namespace blipft {

namespace {

using nlohmann::ordered_json;

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kBaseLayer = ".base_layer.";  // part of PEFT's names of the weights of adapted modules

// Returns the full names of the modules that have adapters.
std::set<std::string> adapted_modules(const Units& units) {
  std::set<std::string> modules;
  for (const Unit* unit : units)
    if (holds_adapters(*unit))
      for (const Parameter& parameter : unit->parameters()) modules.insert(adapted_module(parameter.name));
  return modules;
}

// Returns true if all modules whose names end with `end`, lists of layers included, have adapters: PEFT's target_modules then
// needs only `end`.
bool all_adapted(const Units& units, const std::set<std::string>& modules, const std::string& end) {
  for (const Unit* unit : units)
    for (const Parameter& parameter : unit->parameters()) {
      if (holds_adapters(*unit)) continue;
      for (size_t at = parameter.name.rfind('.'); at != std::string::npos && at > 0; at = parameter.name.rfind('.', at - 1)) {
        const std::string module = parameter.name.substr(0, at);
        if (names_module(end, module) && !modules.count(module)) return false;
      }
    }
  return true;
}

// Returns the shortest end of a module's name that names only modules with adapters.
std::string target_of(const Units& units, const std::set<std::string>& modules, const std::string& module) {
  for (size_t at = module.rfind('.'); at != std::string::npos && at > 0; at = module.rfind('.', at - 1))
    if (const std::string end = module.substr(at + 1); all_adapted(units, modules, end)) return end;
  return module;
}

// Keys of PEFT's LoraConfig that do not change what the tensors mean. Some select the layers with adapters, which the
// tensors show too; the others describe how and where the adapters were trained.
const std::set<std::string> kOtherKeys = {
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules",
    "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config", "lora_ga_config",
    "megatron_config", "megatron_core", "peft_type", "peft_version", "revision", "runtime_config", "target_modules",
    "target_parameters", "task_type", "use_rslora"};

// Returns true if the value of another key turns its feature off: null, false, "none" or empty. A number is allowed
// because it only adjusts a feature that a string or a list turns on.
bool is_off(const ordered_json& value) {
  return value.is_null() || value == false || value.is_number() || (value.is_structured() && value.empty()) ||
         value == "none";
}

// Returns true if the initialization leaves the model's weights unchanged. Others subtract the initial adapters from
// the model's weights, and PEFT does so again when it loads them.
bool keeps_model(const ordered_json& initialisation) {
  if (!initialisation.is_string()) return true;
  std::string name = initialisation.get<std::string>();
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name == "gaussian" || name == "orthogonal" || name == "eva";
}

// Throws UserError if adapter_config.json does not match the adapter settings of the run file.
void check_adapter_config(const AdapterFiles& files) {
  const std::string file = files.adapter.path + "/adapter_config.json";
  BLIPFT_USER_CHECK(std::filesystem::exists(file), location_of(files.places, "adapter.path"), ": found no ", file,
                    "; expected a folder that PEFT's save_pretrained wrote, or a run's output.save_model (adapter/)");
  const ordered_json saved = io::read_json_file<ordered_json>(file);
  BLIPFT_USER_CHECK(saved.is_object(), file, ": found a JSON ", saved.type_name(), ", expected an object");
  const auto expect = [&](const char* key, const ordered_json& wanted, const char* ours) {
    const ordered_json found = saved.value(key, ordered_json());
    const bool same = found.is_number() && wanted.is_number()
                          ? std::abs(found.get<double>() - wanted.get<double>()) <= 1e-9 * std::abs(wanted.get<double>())
                          : found == wanted;
    BLIPFT_USER_CHECK(same, file, ": ", key, ": found ", io::brief(found), ", the run file has ",
                      io::brief(wanted), " (", ours, "); give both the same");
  };
  expect("peft_type", "LORA", "adapter.kind: lora");
  expect("r", files.adapter.r, "adapter.r");
  expect("lora_alpha", files.adapter.alpha, "adapter.alpha");
  if (saved.contains("use_rslora") || files.adapter.rslora)
    expect("use_rslora", files.adapter.rslora, "adapter.rslora");
  for (const auto& [key, value] : saved.items())
    BLIPFT_USER_CHECK(kOtherKeys.count(key) || key == "r" || key == "lora_alpha" || key == "lora_dropout" || is_off(value),
                      file, ": ", brief(key), ": found ", io::brief(value),
                      ": adapters of this kind are not supported; train others without it");
  const ordered_json initialisation = saved.value("init_lora_weights", ordered_json());
  BLIPFT_USER_CHECK(keeps_model(initialisation), file, ": init_lora_weights: found ", io::brief(initialisation),
                    ", which changes the weights of the model itself; save the adapters with PEFT's "
                    "path_initial_model_for_weight_conversion, which makes usual ones of them");
}

// Checks the tensors that are not adapters: PEFT also saves the weight of an adapted head, which must be the model's.
// `numbers`: compares its values too.
void check_base_weights(const SafetensorsReader& adapters, const Units& units, const AdapterFiles& files, bool numbers) {
  std::set<std::string> known;
  for (const Unit* unit : units)
    if (holds_adapters(*unit))
      for (const Parameter& parameter : unit->parameters()) {
        known.insert(parameter.name);
        known.insert(parameter.aliases.begin(), parameter.aliases.end());
      }
  std::unique_ptr<SafetensorsReader> model;
  for (const NamedTensor& stored : adapters.tensors()) {
    if (known.count(stored.first)) continue;
    std::string name = stored.first;
    if (name.starts_with(kAdapterPrefix)) name = name.substr(kAdapterPrefix.size());
    if (const size_t at = name.find(kBaseLayer); at != std::string::npos) name.replace(at, kBaseLayer.size(), ".");
    if (numbers && !model && files.model.init == InitialWeights::pretrained) model = std::make_unique<SafetensorsReader>(files.model.path);
    const NamedTensor* own = nullptr;
    bool is_there = false;
    for (const Unit* unit : units)
      for (const Parameter& parameter : unit->parameters()) {
        const bool names_it = parameter.name == name || std::find(parameter.aliases.begin(), parameter.aliases.end(),
                                                                  name) != parameter.aliases.end();
        is_there = is_there || names_it;
        if (names_it && model) own = find_stored(*model, parameter);
      }
    if (!numbers && is_there) continue;
    BLIPFT_USER_CHECK(own && own->second.shape == stored.second.shape && same_numbers(*model, *own, adapters, stored),
                      stored.second.file, ": tensor ", stored.first, ": it is no adapter that the run file describes, ",
                      own ? concat("and differs from ", own->first, " of ", files.model.path)
                          : concat("and no weight of the model at ", files.model.path),
                      "; check adapter.targets and model.path");
  }
}

// Returns the hub name if the folder is in the hub's cache, because that name is valid on every machine; else the
// absolute path.
std::string name_of_base(const std::string& folder) {
  const std::string name = hub_name_of(folder);
  return name.empty() ? io::absolute_path(folder) : name;
}

}  // namespace

std::string adapter_config(const AdapterFiles& files, const Units& units) {
  const std::set<std::string> modules = adapted_modules(units);
  if (modules.empty()) return "";
  const FamilySpec& family = family_of(files.model.path);
  const ModelClass& base = family.saved_as;
  std::set<std::string> targets;
  // If a part of the model is not read, an end could also match modules of that part.
  const bool whole = family.kept_tensors.empty() || files.model.pictures;
  for (const std::string& module : modules)
    targets.insert(whole ? target_of(units, modules, module) : module);
  const auto number = [](double value) {   // alpha is an integer in most files
    return value == std::floor(value) ? ordered_json(static_cast<int64_t>(value)) : ordered_json(value);
  };
  // PEFT's save_pretrained writes these keys: AutoPeftModelForCausalLM and AutoPeftModelForSeq2SeqLM need the task,
  // AutoPeftModel needs the class.
  ordered_json task = nullptr, mapping = nullptr;
  if (base.causal_lm) task = "CAUSAL_LM";
  else if (base.seq_to_seq) task = "SEQ_2_SEQ_LM";
  else mapping = {{"base_model_class", base.name}, {"parent_library", base.module}};
  ordered_json text = {{"peft_type", "LORA"}, {"task_type", task}, {"auto_mapping", mapping},
                       {"base_model_name_or_path", name_of_base(files.model.path)}, {"r", files.adapter.r},
                       {"lora_alpha", number(files.adapter.alpha)}, {"lora_dropout", files.adapter.dropout},
                       {"use_rslora", files.adapter.rslora}, {"bias", "none"}, {"fan_in_fan_out", false},
                       {"inference_mode", true}, {"target_modules", targets}};
  return text.dump(2) + "\n";
}

void check_adapters(const AdapterFiles& files, const Units& units) {
  if (files.adapter.path.empty()) return;
  check_adapter_config(files);
  const SafetensorsReader reader(files.adapter.path, "adapter_model");
  check_weights(units, reader, Source::adapter);
  check_base_weights(reader, units, files, false);
}

std::shared_ptr<const SafetensorsReader> load_adapters(const WeightContext& context, const AdapterFiles& files) {
  if (files.adapter.path.empty()) return nullptr;
  check_adapters(files, context.units);
  auto reader = std::make_shared<const SafetensorsReader>(files.adapter.path, "adapter_model");
  check_base_weights(*reader, context.units, files, true);
  load_weights(context, *reader, 1, Source::adapter);
  return reader;
}

void refuse_adapter_as_model(const std::string& found, const std::string& folder) {
  const std::string file = folder + "/adapter_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return;
  const nlohmann::json adapter = io::read_json_file(file);
  const auto base = adapter.is_object() ? adapter.find("base_model_name_or_path") : adapter.end();
  const bool named = base != adapter.end() && base->is_string() && !base->get<std::string>().empty();
  throw UserError(concat(found, ", which is an adapter (it has adapter_config.json and no config.json), expected a model; "
                         "give adapter.kind=lora, adapter.path=", folder, ", and as model.path the model that it was ",
                         "trained on", named ? ", " + brief(base->get<std::string>()) : ""));
}

}  // namespace blipft
