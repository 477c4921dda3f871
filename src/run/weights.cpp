// Loading, initialising and saving of weights; see weights.h.
#include "run/weights.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "ops/quietly.h"
#include "run/stored_tensors.h"

namespace blipft {

namespace {

constexpr int64_t kPieceBytes = 8 << 20;
constexpr int64_t kPieceElements = kPieceBytes / 4;  // a multiple of every format's block
constexpr int64_t kLanes = 8;              // reading threads at most

// A run of elements of one stored tensor that this rank keeps.
struct Piece {
  const Unit* unit;
  const Parameter* parameter;
  int64_t first, count;                    // elements of the parameter
};

std::vector<Piece> kept_pieces(const WeightContext& context) {
  std::vector<Piece> pieces;
  for (const Unit* unit : context.units)
    context.store->for_each_range(*unit, [&](const Parameter& parameter, int64_t first, int64_t count) {
      if (parameter.source == Source::fresh) return;
      for (int64_t at = 0; at < count; at += kPieceElements)
        pieces.push_back({unit, &parameter, first + at, std::min(kPieceElements, count - at)});
    });
  return pieces;
}

// A reading thread's way to the device: a pinned buffer, a piece of device scratch, and the event after which both are
// free again.
class Lane {
 public:
  Lane(const WeightContext& context, int64_t index)
      : device_(*context.device), host_(device_.allocate_host(kPieceBytes)), event_(device_.create_event()),
        staging_(context.scratch.part(index * kPieceBytes, {kPieceBytes})) {}
  ~Lane() {
    quietly([&] { device_.free_host(host_); });
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  void* host() {
    if (used_) device_.synchronize(event_);
    return host_;
  }
  void send(const WeightContext& context, const Piece& piece, DType stored) {
    const Stream stream = device_.copy_stream();
    device_.copy(staging_.data, host_, piece.count * dtype_size(stored), stream);
    context.store->write(*piece.unit, *piece.parameter, piece.first, {staging_.data, stored, {piece.count}}, stream);
    device_.record(event_, stream);
    used_ = true;
  }

 private:
  Device& device_;
  void* host_;
  Event event_;
  Tensor staging_;
  bool used_ = false;
};

}  // namespace

int64_t loading_scratch_bytes() { return kLanes * kPieceBytes; }
int64_t init_scratch_bytes() { return kPieceBytes; }

void load_weights(const WeightContext& context, const SafetensorsReader& reader, int64_t threads) {
  check_aliases(context.units, reader);
  const std::vector<Piece> pieces = kept_pieces(context);
  const int64_t lanes = std::clamp<int64_t>(threads, 1, kLanes);
  std::atomic<size_t> next{0};
  std::mutex mutex;                        // one thread enqueues at a time
  std::exception_ptr failure;
  const auto work = [&](int64_t index) {
    try {
      context.device->bind_thread();
      Lane lane(context, index);
      for (size_t i = next++; i < pieces.size(); i = next++) {
        const Piece& piece = pieces[i];
        const auto& [name, stored] = *find_stored(reader, *piece.parameter);
        reader.read(name, piece.first, piece.count, lane.host());
        const std::lock_guard lock(mutex);
        lane.send(context, piece, stored.dtype);
      }
      lane.host();                         // waits for the last send
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = pieces.size();
    }
  };
  std::vector<std::thread> workers;
  for (int64_t i = 0; i < lanes; ++i) workers.emplace_back(work, i);
  for (std::thread& worker : workers) worker.join();
  if (failure) std::rethrow_exception(failure);  // each lane has waited for its last piece
}

void init_weights(const WeightContext& context, uint64_t seed, Filled filled) {
  const Stream stream = context.device->compute_stream();
  uint32_t number = 0;                     // counts parameters over the whole model: the stream of random numbers
  for (const Unit* unit : context.units) {
    const uint32_t first_number = number;
    number += static_cast<uint32_t>(unit->parameters().size());
    context.store->for_each_range(*unit, [&](const Parameter& parameter, int64_t first, int64_t count) {
      if (filled == Filled::fresh && parameter.source != Source::fresh) return;
      const uint32_t mine = first_number + static_cast<uint32_t>(&parameter - unit->parameters().data());
      for (int64_t at = 0; at < count; at += kPieceElements) {
        const Tensor values{context.scratch.data, DType::f32, {std::min(kPieceElements, count - at)}};
        if (parameter.init.kind == Init::Kind::normal)
          context.ops->fill_normal(values, seed, mine, first + at, 0, parameter.init.value, stream);
        else
          context.ops->fill(values, parameter.init.value, stream);
        context.store->write(*unit, parameter, first + at, values, stream);
      }
    });
  }
  context.device->synchronize();
}

namespace {

// Gives every object inside of `object` that says its dtype this one.
void set_dtype(nlohmann::ordered_json& object, const char* name) {
  for (auto& [key, value] : object.items()) {
    if (key == "dtype" || key == "torch_dtype") value = name;
    else if (value.is_structured()) set_dtype(value, name);
  }
}

// config.json with the dtype that was saved.
std::string config_with_dtype(const std::string& source, DType dtype) {
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(read_text_file(source + "/config.json"));
  const char* name = dtype == DType::bf16 ? "bfloat16" : "float32";
  set_dtype(config, name);
  config["dtype"] = name;
  config["torch_dtype"] = name;
  return config.dump(2) + "\n";
}

// The files beside config.json and weights that say how text and pictures become inputs, and outputs text: tokenizers
// (tokenizer.json, special_tokens_map.json, vocab.txt, spiece.model, ...), processors, templates.
std::vector<std::string> input_files(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string(), kind = entry.path().extension().string();
    if (kind != ".json" && kind != ".txt" && kind != ".jinja" && kind != ".model") continue;
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    if (has("token") || has("processor") || has("vocab") || has("merges") || has("chat_template") ||
        name == "generation_config.json" || kind == ".model")
      names.push_back(name);
  }
  BLIPFT_USER_CHECK(!error, directory, ": cannot be read: ", error.message());
  return names;
}

bool is_saved(const Unit& unit, const SaveSettings& settings) { return unit.trainable || !settings.trained_alone; }

// Whether a parameter is saved from its checkpoint, and not from what the ranks hold.
bool is_copied(const Unit& unit, const Parameter& parameter, const SaveSettings& settings) {
  return !unit.trainable && settings.pretrained && parameter.source == Source::checkpoint;
}

bool is_gathered(const Unit& unit, const SaveSettings& settings) {
  return is_saved(unit, settings) &&
         std::any_of(unit.parameters().begin(), unit.parameters().end(),
                     [&](const Parameter& parameter) { return !is_copied(unit, parameter, settings); });
}

// The dtype that the tensors of a gathered unit are saved in; `held`: the dtype of its weights.
DType saved_dtype(const Unit& unit, const SaveSettings& settings, DType held) {
  return unit.trainable ? settings.trained : settings.frozen.value_or(held);
}

// Puts a model's tensors into a writer, which rank 0 has.
class Saver {
 public:
  Saver(const WeightContext& context, const SaveJob& job) : context_(context), job_(job) {}
  void open();
  void save(const Unit& unit);
  void finish() {
    if (writer_) writer_->finish();
  }

 private:
  DType dtype_of(const Unit& unit, const Parameter& parameter) const;
  void save_held(const Unit& unit);
  void copy(const Parameter& parameter, DType dtype);
  const WeightContext& context_;
  const SaveJob& job_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::vector<char> host_;
};

DType Saver::dtype_of(const Unit& unit, const Parameter& parameter) const {
  if (!is_copied(unit, parameter, job_.settings))
    return saved_dtype(unit, job_.settings, context_.store->weight_dtype(unit));
  return job_.settings.frozen.value_or(find_stored(*job_.checkpoint, parameter)->second.dtype);
}

void Saver::open() {
  std::vector<CheckpointWriter::Entry> entries;
  for (const Unit* unit : context_.units) {
    if (!is_saved(*unit, job_.settings)) continue;
    for (const Parameter& parameter : unit->parameters())
      entries.push_back({parameter.name, dtype_of(*unit, parameter), parameter.shape});
  }
  writer_ = std::make_unique<CheckpointWriter>(job_.directory, entries);
  writer_->write_text("config.json", config_with_dtype(job_.source, job_.settings.trained));
  writer_->copy_files(job_.source, input_files(job_.source));
}

// All ranks take part in gathering.
void Saver::save(const Unit& unit) {
  if (!is_saved(unit, job_.settings)) return;
  if (is_gathered(unit, job_.settings)) save_held(unit);
  if (!writer_) return;
  for (const Parameter& parameter : unit.parameters())
    if (is_copied(unit, parameter, job_.settings)) copy(parameter, dtype_of(unit, parameter));
}

void Saver::save_held(const Unit& unit) {
  Device& device = *context_.device;
  const Stream stream = device.compute_stream();
  const int64_t padded = context_.store->shard(unit).padded;
  const DType held = context_.store->weight_dtype(unit), dtype = saved_dtype(unit, job_.settings, held);
  const int64_t full_bytes = padded * dtype_size(held), cast_bytes = padded * dtype_size(dtype);
  const int64_t gathered_bytes = context_.strategy->gather_scratch_bytes(unit);
  const int64_t needed = full_bytes + cast_bytes + gathered_bytes;
  BLIPFT_CHECK(needed <= context_.scratch.numel(), "saving ", unit.name(), " needs ", needed,
               " bytes of scratch memory, there are ", context_.scratch.numel());
  const Tensor full{context_.scratch.data, held, {padded}};
  context_.strategy->gather_weights(unit, full, context_.scratch.part(full_bytes + cast_bytes, {gathered_bytes}),
                                    stream);
  if (!writer_) return;
  Tensor out = full;
  if (held != dtype) {
    out = {static_cast<char*>(context_.scratch.data) + full_bytes, dtype, {padded}};
    context_.ops->cast(full, out, stream);
  }
  host_.resize(static_cast<size_t>(out.bytes()));
  device.copy(host_.data(), out.data, out.bytes(), stream);
  device.synchronize(stream);
  for (const Parameter& parameter : unit.parameters())
    if (!is_copied(unit, parameter, job_.settings))
      writer_->write(parameter.name, 0, parameter.numel(), host_.data() + parameter.offset * dtype_size(dtype));
}

// From the checkpoint, by way of the device where the dtype changes.
void Saver::copy(const Parameter& parameter, DType dtype) {
  Device& device = *context_.device;
  const Stream stream = device.compute_stream();
  const auto& [name, stored] = *find_stored(*job_.checkpoint, parameter);
  const int64_t n = parameter.numel(), step = kPieceBytes / 4;
  host_.resize(static_cast<size_t>(kPieceBytes));
  for (int64_t first = 0; first < n; first += step) {
    const int64_t count = std::min(step, n - first);
    job_.checkpoint->read(name, first, count, host_.data());
    if (stored.dtype != dtype) {
      const Tensor from{context_.scratch.data, stored.dtype, {count}};
      const Tensor to{static_cast<char*>(context_.scratch.data) + kPieceBytes, dtype, {count}};
      device.copy(from.data, host_.data(), from.bytes(), stream);
      context_.ops->cast(from, to, stream);
      device.copy(host_.data(), to.data, to.bytes(), stream);
      device.synchronize(stream);
    }
    writer_->write(parameter.name, first, count, host_.data());
  }
}

}  // namespace

SaveSettings SaveSettings::of(const Config& config) {
  const PrecisionTypes types = PrecisionTypes::of(config.train.precision);
  SaveSettings settings{types.master ? DType::f32 : types.compute, std::nullopt, config.output.save == "trained",
                        config.model.init == "pretrained"};
  if (config.output.save_dtype == "f32") settings.trained = DType::f32, settings.frozen = DType::f32;
  if (config.output.save_dtype == "bf16") settings.trained = DType::bf16, settings.frozen = DType::bf16;
  return settings;
}

int64_t saving_scratch_bytes(const Units& units, const ParameterStore& store, const Strategy& strategy,
                             const SaveSettings& settings) {
  int64_t most = 0;
  for (const Unit* unit : units) {
    if (!is_saved(*unit, settings)) continue;
    const DType held = store.weight_dtype(*unit);
    const int64_t gathered =
        store.shard(*unit).padded * (dtype_size(held) + dtype_size(saved_dtype(*unit, settings, held))) +
        strategy.gather_scratch_bytes(*unit);
    if (is_gathered(*unit, settings)) most = std::max(most, gathered);
    if (!unit->trainable && settings.pretrained && settings.frozen) most = std::max(most, 2 * kPieceBytes);
  }
  return most;
}

void save_weights(const WeightContext& context, const World& world, const SaveJob& job) {
  BLIPFT_CHECK(!job.settings.pretrained || job.checkpoint, "the checkpoint of pretrained weights is gone");
  Saver saver(context, job);
  world.together([&] {
    if (world.rank() == 0) saver.open();
  });
  for (const Unit* unit : context.units) saver.save(*unit);
  context.device->synchronize();
  world.together([&] { saver.finish(); });
}

}  // namespace blipft
