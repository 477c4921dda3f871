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
    const Stream stream = device_.compute_stream();
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

int64_t weights_scratch_bytes(const Model& model, const ParameterStore& store, const Strategy& strategy,
                              DType saved) {
  int64_t most = kLanes * kPieceBytes;
  for (const Unit* unit : model.units())
    most = std::max(most, store.shard(*unit).padded * (dtype_size(store.weight_dtype(*unit)) + dtype_size(saved)) +
                              strategy.gather_scratch_bytes(*unit));
  return most;
}

DType save_dtype(const std::string& name, const PrecisionTypes& types) {
  if (name == "f32") return DType::f32;
  if (name == "bf16") return DType::bf16;
  return types.master ? DType::f32 : types.compute;
}

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
  if (failure) std::rethrow_exception(failure);
  context.device->synchronize();
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

std::unique_ptr<CheckpointWriter> open_writer(const Model& model, const std::string& directory, DType dtype,
                                              const std::string& source) {
  std::vector<CheckpointWriter::Entry> entries;
  for (const Unit* unit : model.units())
    for (const Parameter& parameter : unit->parameters()) entries.push_back({parameter.name, dtype, parameter.shape});
  auto writer = std::make_unique<CheckpointWriter>(directory, entries);
  writer->write_text("config.json", config_with_dtype(source, dtype));
  writer->copy_files(source, {"generation_config.json", "preprocessor_config.json", "processor_config.json",
                              "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                              "vocab.json", "merges.txt", "chat_template.jinja"});
  return writer;
}

}  // namespace

void save_weights(const WeightContext& context, const World& world, const std::string& directory, DType dtype,
                  const std::string& source) {
  Device& device = *context.device;
  const Stream stream = device.compute_stream();
  std::unique_ptr<CheckpointWriter> writer;
  world.together([&] {
    if (world.rank() == 0) writer = open_writer(*context.model, directory, dtype, source);
  });
  std::vector<char> host;
  for (const Unit* unit : context.model->units()) {
    const Shard& shard = context.store->shard(*unit);
    const DType held = context.store->weight_dtype(*unit);
    const int64_t full_bytes = shard.padded * dtype_size(held), cast_bytes = shard.padded * dtype_size(dtype);
    const int64_t gathered_bytes = context.strategy->gather_scratch_bytes(*unit);
    BLIPFT_CHECK(full_bytes + cast_bytes + gathered_bytes <= context.scratch.numel(), "saving ", unit->name(), " needs ",
                 full_bytes + cast_bytes + gathered_bytes, " bytes of scratch memory, there are ", context.scratch.numel());
    const Tensor full{context.scratch.data, held, {shard.padded}};
    context.strategy->gather_weights(*unit, full, context.scratch.part(full_bytes + cast_bytes, {gathered_bytes}),
                                     stream);
    if (!writer) continue;
    Tensor out = full;
    if (held != dtype) {
      out = {static_cast<char*>(context.scratch.data) + full_bytes, dtype, {shard.padded}};
      context.ops->cast(full, out, stream);
    }
    host.resize(static_cast<size_t>(out.bytes()));
    device.copy(host.data(), out.data, out.bytes(), stream);
    device.synchronize(stream);
    for (const Parameter& parameter : unit->parameters())
      writer->write(parameter.name, 0, parameter.numel(), host.data() + parameter.offset * dtype_size(dtype));
  }
  device.synchronize();
  world.together([&] {
    if (writer) writer->finish();
  });
}

}  // namespace blipft
