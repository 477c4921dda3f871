// Loading, initialising and saving of weights; see weights.h.
#include "run/weights.h"

#include <algorithm>
#include <atomic>
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
  for (const Unit* unit : context.model->units())
    context.store->for_each_range(*unit, [&](const Parameter& parameter, int64_t first, int64_t count) {
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
  check_aliases(*context.model, reader);
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

void init_weights(const WeightContext& context, uint64_t seed) {
  const Stream stream = context.device->compute_stream();
  uint32_t number = 0;                     // counts parameters over the whole model: the stream of random numbers
  for (const Unit* unit : context.model->units()) {
    const uint32_t first_number = number;
    number += static_cast<uint32_t>(unit->parameters().size());
    context.store->for_each_range(*unit, [&](const Parameter& parameter, int64_t first, int64_t count) {
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

// config.json with the dtype that was saved.
std::string config_with_dtype(const std::string& source, DType dtype) {
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(read_text_file(source + "/config.json"));
  const char* name = dtype == DType::bf16 ? "bfloat16" : "float32";
  config["dtype"] = name;
  config["torch_dtype"] = name;
  for (const char* section : {"text_config", "vision_config", "qformer_config"})
    if (config.contains(section) && config[section].is_object())
      for (const char* key : {"dtype", "torch_dtype"})
        if (config[section].contains(key)) config[section][key] = name;
  return config.dump(2) + "\n";
}

// Whether `unit` is saved from what the ranks hold, and not copied from the checkpoint.
bool is_gathered(const Unit& unit, bool from_checkpoint) { return unit.trainable || !from_checkpoint; }

// The dtype that the tensors of a gathered unit are saved in; `held`: the dtype of its weights.
DType saved_dtype(const Unit& unit, const SavedTypes& types, DType held) {
  return unit.trainable ? types.trained : types.frozen.value_or(held);
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
  bool gathered(const Unit& unit) const { return is_gathered(unit, job_.checkpoint); }
  DType dtype_of(const Unit& unit, const Parameter& parameter) const;
  void save_held(const Unit& unit);
  void copy(const Parameter& parameter, DType dtype);
  const WeightContext& context_;
  const SaveJob& job_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::vector<char> host_;
};

DType Saver::dtype_of(const Unit& unit, const Parameter& parameter) const {
  if (gathered(unit)) return saved_dtype(unit, job_.types, context_.store->weight_dtype(unit));
  return job_.types.frozen.value_or(find_stored(*job_.checkpoint, parameter)->second.dtype);
}

void Saver::open() {
  std::vector<CheckpointWriter::Entry> entries;
  for (const Unit* unit : context_.model->units())
    for (const Parameter& parameter : unit->parameters())
      entries.push_back({parameter.name, dtype_of(*unit, parameter), parameter.shape});
  writer_ = std::make_unique<CheckpointWriter>(job_.directory, entries);
  writer_->write_text("config.json", config_with_dtype(job_.source, job_.types.trained));
  writer_->copy_files(job_.source, {"generation_config.json", "preprocessor_config.json", "processor_config.json",
                                    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                    "added_tokens.json", "tokenizer.model", "vocab.json", "merges.txt",
                                    "chat_template.jinja"});
}

// All ranks take part in gathering.
void Saver::save(const Unit& unit) {
  if (gathered(unit)) return save_held(unit);
  if (!writer_) return;
  for (const Parameter& parameter : unit.parameters()) copy(parameter, dtype_of(unit, parameter));
}

void Saver::save_held(const Unit& unit) {
  Device& device = *context_.device;
  const Stream stream = device.compute_stream();
  const int64_t padded = context_.store->shard(unit).padded;
  const DType held = context_.store->weight_dtype(unit), dtype = saved_dtype(unit, job_.types, held);
  const int64_t full_bytes = padded * dtype_size(held), cast_bytes = padded * dtype_size(dtype);
  const int64_t gathered_bytes = context_.strategy->gather_scratch_bytes(unit);
  const int64_t needed = full_bytes + cast_bytes + gathered_bytes;
  BLIPFT_CHECK(needed <= context_.scratch.numel(), "saving ", unit.name(), " needs ", needed,
               " bytes of scratch memory, there are ", context_.scratch.numel());
  const Tensor full{context_.scratch.data, held, {padded}};
  context_.strategy->gather_weights(unit, full, context_.scratch.part(full_bytes + cast_bytes, {gathered_bytes}), stream);
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

SavedTypes SavedTypes::of(const std::string& save_dtype, const PrecisionTypes& types) {
  if (save_dtype == "f32") return {DType::f32, DType::f32};
  if (save_dtype == "bf16") return {DType::bf16, DType::bf16};
  return {types.master ? DType::f32 : types.compute, std::nullopt};
}

int64_t saving_scratch_bytes(const Model& model, const ParameterStore& store, const Strategy& strategy,
                             const SavedTypes& types, bool from_checkpoint) {
  int64_t most = 0;
  for (const Unit* unit : model.units()) {
    const DType held = store.weight_dtype(*unit);
    const int64_t gathered =
        store.shard(*unit).padded * (dtype_size(held) + dtype_size(saved_dtype(*unit, types, held))) +
        strategy.gather_scratch_bytes(*unit);
    most = std::max(most, is_gathered(*unit, from_checkpoint) ? gathered : types.frozen ? 2 * kPieceBytes : 0);
  }
  return most;
}

void save_weights(const WeightContext& context, const World& world, const SaveJob& job) {
  Saver saver(context, job);
  world.together([&] {
    if (world.rank() == 0) saver.open();
  });
  for (const Unit* unit : context.model->units()) saver.save(*unit);
  context.device->synchronize();
  world.together([&] { saver.finish(); });
}

}  // namespace blipft
