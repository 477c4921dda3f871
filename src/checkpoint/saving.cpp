// Saving of weights; see saving.h.
#include "checkpoint/saving.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <vector>

#include "agreement/output_folder.h"
#include "blipft/family.h"
#include "blipft/model.h"
#include "checkpoint/saved_config.h"
#include "engine/settings.h"
#include "io/json.h"
#include "weights/adapter_files.h"
#include "weights/model_files.h"
#include "weights/own_head.h"
#include "weights/stored_tensors.h"

namespace blipft {

namespace {

constexpr int64_t kShardBytes = int64_t{5} << 30;  // maximum size of a file of tensors

bool is_saved(const Unit& unit, const SaveSettings& settings) {
  using What = SaveSettings::What;
  if (holds_adapters(unit)) return settings.what == What::adapters;
  return settings.what == What::all || (settings.what == What::trained && unit.trainable);
}

// Returns true if a parameter is copied from its checkpoint rather than gathered from the ranks.
bool is_copied(const Unit& unit, const Parameter& parameter, const SaveSettings& settings) {
  return !unit.trainable && settings.pretrained && parameter.source == Source::checkpoint;
}

bool is_gathered(const Unit& unit, const SaveSettings& settings) {
  return is_saved(unit, settings) &&
         std::any_of(unit.parameters().begin(), unit.parameters().end(),
                     [&](const Parameter& parameter) { return !is_copied(unit, parameter, settings); });
}

// Returns the dtype in which a gathered unit is saved. `held`: the dtype of its weights in the store.
DType saved_dtype(const Unit& unit, const SaveSettings& settings, DType held) {
  return unit.trainable ? settings.trained : settings.frozen.value_or(held);
}

// Returns the dtype in which a parameter is saved. `checkpoint` has the parameters that are copied.
DType saved_dtype(const Unit& unit, const Parameter& parameter, const SaveSettings& settings, DType held,
                  const SafetensorsReader* checkpoint) {
  if (!is_copied(unit, parameter, settings)) return saved_dtype(unit, settings, held);
  if (settings.frozen) return *settings.frozen;
  const NamedTensor* stored = checkpoint ? find_stored(*checkpoint, parameter) : nullptr;
  return stored ? stored->second.dtype : held;
}

// Returns the checkpoint's tensors that blipft does not use (FamilySpec::kept_tensors); they are saved unchanged.
std::vector<const NamedTensor*> tensors_next_to(const Units& units, const SaveSettings& settings, const SafetensorsReader* checkpoint,
                                               const std::string& source) {
  std::vector<const NamedTensor*> found;
  if (settings.what != SaveSettings::What::all || !checkpoint) return found;
  const std::vector<std::string> begins = family_of(source).kept_tensors;
  std::set<std::string> used;
  for (const Unit* unit : units)
    for (const Parameter& parameter : unit->parameters()) {
      used.insert(parameter.name);
      used.insert(parameter.aliases.begin(), parameter.aliases.end());
    }
  for (const NamedTensor& tensor : checkpoint->tensors()) {
    const auto is_prefix = [&](const std::string& begin) { return tensor.first.starts_with(begin); };
    if (!used.contains(tensor.first) && std::any_of(begins.begin(), begins.end(), is_prefix)) found.push_back(&tensor);
  }
  return found;
}

// A low-rank product that is added to a weight: scale B A, B [out, r], A [r, in], f32 device memory.
struct LowRank {
  Tensor a, b;
};

// A tied weight that is saved separately, because an adapter is merged into it.
struct Untied {
  std::string name;
  const Unit* unit;
  const Parameter* parameter;              // the parameter of `unit` that it is tied to
};

std::vector<Untied> untied_weights(const Unit& unit, const Units& units, const SaveSettings& settings) {
  std::vector<Untied> found;
  if (!unit.adapter || settings.what != SaveSettings::What::all) return found;
  std::set<std::string> names;
  for (const Parameter& own : unit.adapter->parameters()) names.insert(adapted_module(own.name) + ".weight");
  for (const Unit* other : units)
    for (const Parameter& parameter : other->parameters())
      for (const std::string& alias : parameter.aliases)
        if (names.count(alias)) found.push_back({alias, other, &parameter});
  return found;
}

// Passes the tensors of a model to a writer, which only rank 0 has.
class Saver {
 public:
  Saver(const WeightContext& context, const SaveJob& job) : context_(context), job_(job) {}
  void open();
  void save(const Unit& unit);
  void finish();
  const std::string& saved_as() const { return saved_as_; }

 private:
  DType dtype_of(const Unit& unit, const Parameter& parameter) const;
  DType config_dtype(const std::vector<CheckpointWriter::Entry>& entries) const;
  void write_config(const std::vector<CheckpointWriter::Entry>& entries, bool unties);
  void copy_inputs(const std::vector<std::string>& more, const std::string& except);
  Tensor gather(const Unit& unit, DType dtype);
  void save_held(const Unit& unit);
  void order_adapters(const Unit& adapters, const Tensor& gathered);
  LowRank adapter_of(const Unit& unit, const std::string& weight, const Tensor& gathered) const;
  void copy(const std::string& key, const Parameter& parameter, DType dtype, const LowRank& added,
            int64_t scratch_from);
  const WeightContext& context_;
  const SaveJob& job_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::vector<const NamedTensor*> beside_;
  std::vector<char> host_;
  std::string saved_as_;                   // the saved folder; on rank 0
};

DType Saver::dtype_of(const Unit& unit, const Parameter& parameter) const {
  return saved_dtype(unit, parameter, job_.settings, context_.store->weight_dtype(unit), job_.checkpoint);
}

// Returns the dtype for config.json, to which transformers casts all tensors. It is the dtype of trained weights, so
// that they are not rounded, or, if only adapters were trained, the dtype of most elements.
DType Saver::config_dtype(const std::vector<CheckpointWriter::Entry>& entries) const {
  const auto trained = [&](const Unit* unit) { return unit->trainable && is_saved(*unit, job_.settings); };
  if (std::any_of(context_.units.begin(), context_.units.end(), trained)) return job_.settings.trained;
  std::map<DType, int64_t> elements;
  for (const CheckpointWriter::Entry& entry : entries)
    elements[entry.dtype] += std::accumulate(entry.shape.begin(), entry.shape.end(), int64_t{1}, std::multiplies<>());
  const auto maximum = std::max_element(elements.begin(), elements.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return maximum == elements.end() ? job_.settings.trained : maximum->first;
}

void Saver::write_config(const std::vector<CheckpointWriter::Entry>& entries, bool unties) {
  int64_t vocabulary = 0;
  for (const Unit* unit : context_.units)
    for (const Parameter& parameter : unit->parameters())
      if (parameter.kind == ParameterKind::embedding) vocabulary = std::max(vocabulary, parameter.shape[0]);
  const SavedConfig saved = saved_config(job_.source, config_dtype(entries),
                                         unties || (has_head(context_.units, job_.source) && says_tied(job_.source)), vocabulary);
  writer_->write_text("config.json", saved.config);
  copy_inputs({"generation_config.json"}, saved.processor.empty() ? "" : "processor_config.json");
  if (!saved.processor.empty()) writer_->write_text("processor_config.json", saved.processor);
  for (const std::string& note : saved.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
}

// The tokenizer's and processor's files, `more` of them but not `except`, and the chat template that was trained.
void Saver::copy_inputs(const std::vector<std::string>& more, const std::string& except) {
  std::vector<std::string> names = input_files(job_.source);
  names.insert(names.end(), more.begin(), more.end());
  std::erase(names, except);
  if (!job_.chat_template.empty()) std::erase(names, "chat_template.jinja");
  writer_->copy_files(job_.source, names);
  if (!job_.chat_template.empty()) writer_->write_text("chat_template.jinja", job_.chat_template);
}

void Saver::open() {
  std::vector<CheckpointWriter::Entry> entries;
  bool unties = false;
  for (const Unit* unit : context_.units) {
    if (!is_saved(*unit, job_.settings)) continue;
    for (const Parameter& parameter : unit->parameters())
      entries.push_back({parameter.name, dtype_of(*unit, parameter), parameter.shape});
    for (const Untied& weight : untied_weights(*unit, context_.units, job_.settings)) {
      entries.push_back({weight.name, dtype_of(*weight.unit, *weight.parameter), weight.parameter->shape});
      unties = true;
    }
  }
  if (job_.settings.what == SaveSettings::What::adapters) {
    writer_ = std::make_unique<CheckpointWriter>(job_.directory, entries, std::numeric_limits<int64_t>::max(),
                                                 "adapter_model", job_.origin);
    writer_->write_text("adapter_config.json", job_.adapter_config);
    copy_inputs({}, "");
    return;
  }
  beside_ = tensors_next_to(context_.units, job_.settings, job_.checkpoint, job_.source);
  for (const NamedTensor* tensor : beside_)
    entries.push_back({tensor->first, tensor->second.dtype, tensor->second.shape});
  writer_ = std::make_unique<CheckpointWriter>(job_.directory, entries, kShardBytes, "model", job_.origin);
  write_config(entries, unties);
}

void Saver::finish() {
  if (!writer_) return;
  for (const NamedTensor* tensor : beside_) {
    const int64_t n = tensor->second.numel();
    host_.resize(static_cast<size_t>(kPieceBytes));
    for (int64_t first = 0; first < n; first += kPieceBytes / 8) {
      const int64_t count = std::min(kPieceBytes / 8, n - first);
      job_.checkpoint->read(tensor->first, first, count, host_.data());
      writer_->write(tensor->first, first, count, host_.data());
    }
  }
  saved_as_ = writer_->finish();
}

// Saves a unit. All ranks must call it because gathering is collective.
void Saver::save(const Unit& unit) {
  if (!is_saved(unit, job_.settings)) return;
  if (is_gathered(unit, job_.settings)) save_held(unit);
  Tensor adapters;                         // at the beginning of the scratch memory
  if (unit.adapter && job_.settings.what == SaveSettings::What::all) adapters = gather(*unit.adapter, DType::f32);
  if (!writer_) return;
  if (adapters) order_adapters(*unit.adapter, adapters);
  const auto copy_with = [&](const std::string& key, const Unit& holder, const Parameter& parameter) {
    copy(key, parameter, dtype_of(holder, parameter),
         adapters ? adapter_of(*unit.adapter, key, adapters) : LowRank{}, adapters.bytes());
  };
  for (const Parameter& parameter : unit.parameters())
    if (is_copied(unit, parameter, job_.settings)) copy_with(parameter.name, unit, parameter);
  for (const Untied& weight : untied_weights(unit, context_.units, job_.settings))
    copy_with(weight.name, *weight.unit, *weight.parameter);
}

// Returns the unit's whole flat buffer in `dtype`, in scratch memory.
Tensor Saver::gather(const Unit& unit, DType dtype) {
  const Stream stream = context_.device->compute_stream();
  const int64_t padded = context_.store->shard(unit).padded;
  const DType held = context_.store->weight_dtype(unit);
  const int64_t cast_bytes = padded * dtype_size(dtype), full_bytes = held == dtype ? 0 : padded * dtype_size(held);
  const int64_t gathered_bytes = context_.strategy->gather_scratch_bytes(unit);
  const int64_t needed = cast_bytes + full_bytes + gathered_bytes;
  BLIPFT_CHECK(needed <= context_.scratch.numel(), "saving ", unit.name(), " needs ", needed,
               " bytes of scratch memory, there are ", context_.scratch.numel());
  const Tensor out{context_.scratch.data, dtype, {padded}};
  const Tensor full = held == dtype ? out : Tensor{context_.scratch.part(cast_bytes, {full_bytes}).data, held, {padded}};
  context_.strategy->gather_weights(unit, full, context_.scratch.part(cast_bytes + full_bytes, {gathered_bytes}),
                                    stream);
  if (writer_ && held != dtype) context_.ops->cast(full, out, stream);
  return out;
}

void Saver::save_held(const Unit& unit) {
  Device& device = *context_.device;
  const Stream stream = device.compute_stream();
  const DType dtype = saved_dtype(unit, job_.settings, context_.store->weight_dtype(unit));
  const Tensor out = gather(unit, dtype);
  if (!writer_) return;
  host_.resize(static_cast<size_t>(out.bytes()));
  device.copy(host_.data(), out.data, out.bytes(), stream);
  device.synchronize(stream);
  for (const Parameter& parameter : unit.parameters()) {
    if (is_copied(unit, parameter, job_.settings)) continue;
    char* const data = host_.data() + parameter.offset * dtype_size(dtype);
    order_for_files(parameter, dtype_size(dtype), data);
    writer_->write(parameter.name, 0, parameter.numel(), data);
  }
}

// Reorders rows of adapters, in device memory, to the order of files, because they are added to weights in that order.
void Saver::order_adapters(const Unit& adapters, const Tensor& gathered) {
  Device& device = *context_.device;
  const Stream stream = device.compute_stream();
  for (const Parameter& parameter : adapters.parameters()) {
    if (!parameter.rows) continue;
    const Tensor values = gathered.part(parameter.offset, {parameter.numel()});
    host_.resize(static_cast<size_t>(values.bytes()));
    device.copy(host_.data(), values.data, values.bytes(), stream);
    device.synchronize(stream);
    order_for_files(parameter, dtype_size(values.dtype), host_.data());
    device.copy(values.data, host_.data(), values.bytes(), stream);
    device.synchronize(stream);
  }
}

// Returns the low-rank product of `weight` from `gathered`, the adapters of `unit`; empty if the weight has no adapter.
LowRank Saver::adapter_of(const Unit& unit, const std::string& weight, const Tensor& gathered) const {
  LowRank found;
  for (const Parameter& own : unit.parameters()) {
    const std::string module = adapted_module(own.name);
    if (weight != module + ".weight") continue;
    (own.name == adapter_key(module, "lora_A") ? found.a : found.b) =
        gathered.part(own.offset, {own.shape[0], own.shape[1]});
  }
  return found;
}

// Copies a tensor from the checkpoint. If its dtype changes or an adapter is added, the device computes it; with an
// adapter in whole rows.
void Saver::copy(const std::string& key, const Parameter& parameter, DType dtype, const LowRank& added,
                 int64_t scratch_from) {
  Device& device = *context_.device;
  const Stream stream = device.compute_stream();
  const auto& [name, stored] = *find_stored(*job_.checkpoint, parameter);
  const int64_t n = parameter.numel(), row = added.a ? added.a.cols() : 1;
  const int64_t step = std::max(row, kPieceBytes / 4 / row * row);
  const auto part_of = [&](int64_t which, DType type, int64_t count) {
    return Tensor{context_.scratch.part(scratch_from + which * kPieceBytes, {kPieceBytes}).data, type, {count}};
  };
  host_.resize(static_cast<size_t>(kPieceBytes));
  for (int64_t first = 0; first < n; first += step) {
    const int64_t count = std::min(step, n - first);
    job_.checkpoint->read(name, first, count, host_.data());
    if (stored.dtype != dtype || added.a) {
      Tensor from = part_of(0, stored.dtype, count);
      const Tensor to = part_of(1, dtype, count);
      device.copy(from.data, host_.data(), from.bytes(), stream);
      if (added.a) {
        const Tensor sum = part_of(2, DType::f32, count).view({count / row, row});
        context_.ops->cast(from, sum, stream);
        context_.ops->linear_backward_input({.dy = added.b.row_range(first / row, count / row), .w = added.a,
                                             .scale = job_.settings.adapter_scale, .add = sum, .dx = sum},
                                            stream);
        from = sum;
      }
      context_.ops->cast(from, to, stream);
      device.copy(host_.data(), to.data, to.bytes(), stream);
      device.synchronize(stream);
    }
    writer_->write(key, first, count, host_.data());
  }
}

}  // namespace

std::vector<SaveSettings> SaveSettings::of(const RunSettings& config) {
  const PrecisionTypes types = precision_types(config);
  SaveSettings settings;
  if (config.output.save == SavedTensors::trained) settings.what = What::trained;
  settings.trained = types.master ? DType::f32 : types.compute;
  settings.pretrained = config.model.init == InitialWeights::pretrained;
  if (config.output.save_dtype == SavedDtype::f32) settings.trained = DType::f32, settings.frozen = DType::f32;
  if (config.output.save_dtype == SavedDtype::bf16) settings.trained = DType::bf16, settings.frozen = DType::bf16;
  if (config.adapter.kind == AdapterKind::none) return {settings};
  SaveSettings adapters = settings;
  adapters.what = What::adapters;
  if (!config.output.save_merged) return {adapters};
  settings.adapter_scale = model_settings(config).adapter.scale;
  return {adapters, settings};
}

int64_t saving_scratch_bytes(const Units& units, const ParameterStore& store, const Strategy& strategy,
                             const SaveSettings& settings) {
  int64_t maximum = 0;
  for (const Unit* unit : units) {
    if (!is_saved(*unit, settings)) continue;
    const auto gathered = [&](const Unit& which, DType dtype) {
      const DType held = store.weight_dtype(which);
      return store.shard(which).padded * (dtype_size(dtype) + (held == dtype ? 0 : dtype_size(held))) +
             strategy.gather_scratch_bytes(which);
    };
    if (is_gathered(*unit, settings))
      maximum = std::max(maximum, gathered(*unit, saved_dtype(*unit, settings, store.weight_dtype(*unit))));
    if (!unit->trainable && settings.pretrained && settings.frozen) maximum = std::max(maximum, 2 * kPieceBytes);
    if (unit->adapter && settings.what == SaveSettings::What::all)
      maximum = std::max(maximum, gathered(*unit->adapter, DType::f32) + 3 * kPieceBytes);
  }
  return maximum;
}

int64_t saved_bytes(const Units& units, const ParameterStore& store, const SaveSettings& settings,
                    const SafetensorsReader* checkpoint, const std::string& source) {
  int64_t bytes = kSmallFilesBytes;
  for (const NamedTensor* tensor : tensors_next_to(units, settings, checkpoint, source))
    bytes += tensor->second.numel() * dtype_size(tensor->second.dtype);
  for (const Unit* unit : units) {
    if (!is_saved(*unit, settings)) continue;
    for (const Parameter& parameter : unit->parameters())
      bytes += parameter.numel() *
               dtype_size(saved_dtype(*unit, parameter, settings, store.weight_dtype(*unit), checkpoint));
  }
  return bytes;
}

std::string save_weights(const WeightContext& context, const World& world, const SaveJob& job) {
  BLIPFT_CHECK(!job.settings.pretrained || job.checkpoint, "the checkpoint of pretrained weights is gone");
  Saver saver(context, job);
  world.run_agreeing_on_errors([&] {
    if (world.rank() == 0) saver.open();
  });
  for (const Unit* unit : context.units) saver.save(*unit);
  context.device->synchronize();
  world.run_agreeing_on_errors([&] { saver.finish(); });
  return world.from_rank(0, saver.saved_as());
}

std::vector<FileToWrite> files_to_save(const RunSettings& config, const Units& units, const ParameterStore& store) {
  std::vector<FileToWrite> files;
  if (!config.output.save_model) return files;
  std::unique_ptr<SafetensorsReader> checkpoint;
  const std::vector<std::string> folders = output_names(config).saved;
  for (const SaveSettings& settings : SaveSettings::of(config)) {
    // If the checkpoint cannot be read, loading reports the error.
    if (settings.pretrained && !checkpoint) {
      try {
        checkpoint = std::make_unique<SafetensorsReader>(config.model.path);
      } catch (const UserError&) {
      }
    }
    const std::string& folder = folders[files.size()];
    files.push_back({std::filesystem::path(folder).filename().string(),
                     saved_bytes(units, store, settings, checkpoint.get(), config.model.path), folder});
  }
  return files;
}

void check_saved_parts(const RunSettings& config) {
  const bool saves = config.output.save_model && config.adapter.kind == AdapterKind::none && config.output.save == SavedTensors::all;
  if (!saves || config.model.init == InitialWeights::pretrained || config.model.pictures) return;
  const std::vector<std::string>& beside = family_of(config.model.path).kept_tensors;
  BLIPFT_USER_CHECK(beside.empty(), location_of(config, "model.init"),
                    ": model.init: found random, but the saved model of ", config.model.path, " has parts that are not trained here (",
                    beside.front(), "...) and come from its weights; set model.init: pretrained, or output.save: trained");
}

}  // namespace blipft
