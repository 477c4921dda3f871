// Loading and initialization of weights; see weights.h.
#include "weights/weights.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "ops/host_memory.h"
#include "weights/stored_tensors.h"

namespace blipft {

namespace {

constexpr int64_t kPieceElements = kPieceBytes / 4;  // a multiple of every format's block
constexpr int64_t kLanes = 8;              // maximum number of reading threads

// Consecutive elements of a parameter that this rank reads.
struct Piece {
  const Unit* unit;
  const Parameter* parameter;
  int64_t first, count;                    // elements of the parameter
};

std::vector<Piece> kept_pieces(const WeightContext& context, Source source) {
  std::vector<Piece> pieces;
  for (const Unit* unit : context.units)
    context.store->for_each_range(*unit, [&](const Parameter& parameter, int64_t first, int64_t count) {
      if (parameter.source != source) return;
      for (int64_t at = 0; at < count; at += kPieceElements)
        pieces.push_back({unit, &parameter, first + at, std::min(kPieceElements, count - at)});
    });
  return pieces;
}

// Returns all elements of the parameters whose matrices have a scale, and resets the scales: each rank computes them
// from the whole matrix.
std::vector<Piece> measured_pieces(const WeightContext& context, Source source) {
  std::vector<Piece> pieces;
  for (const Unit* unit : context.units)
    for (const Parameter& parameter : unit->parameters()) {
      if (parameter.source != source || !context.store->scaled(*unit, parameter)) continue;
      context.store->reset_scale(*unit, parameter, context.device->copy_stream());
      for (int64_t at = 0; at < parameter.numel(); at += kPieceElements)
        pieces.push_back({unit, &parameter, at, std::min(kPieceElements, parameter.numel() - at)});
    }
  return pieces;
}

// The use of a piece: its elements are stored on this rank, or only measured for the scale of a matrix.
enum class Use { stored, measured };

// The transfer buffers of a reading thread: pinned host memory, device scratch memory, and the event after which both
// can be reused.
class Lane {
 public:
  Lane(const WeightContext& context, int64_t index)
      : device_(*context.device), host_(device_, kPieceBytes), event_(device_.create_event()),
        staging_(context.scratch.part(index * kPieceBytes, {kPieceBytes})) {}
  void* host() {
    if (used_) device_.synchronize(event_);
    return host_.get();
  }
  void send(const WeightContext& context, const Piece& piece, DType stored, Use use) {
    const Stream stream = device_.copy_stream();
    device_.copy(staging_.data, host_.get(), piece.count * dtype_size(stored), stream);
    const Tensor values{staging_.data, stored, {piece.count}};
    if (use == Use::measured) context.store->measure(*piece.unit, *piece.parameter, values, stream);
    else context.store->write(*piece.unit, *piece.parameter, piece.first, values, stream);
    device_.record(event_, stream);
    used_ = true;
  }

 private:
  Device& device_;
  HostMemory host_;
  Event event_;
  Tensor staging_;
  bool used_ = false;
};

// Reads `pieces` with `threads` threads.
void read(const WeightContext& context, const SafetensorsReader& reader, int64_t threads, const std::vector<Piece>& pieces, Use use) {
  if (pieces.empty()) return;
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
        const NamedTensor& tensor = *find_stored(reader, *piece.parameter);
        read_parameter(reader, tensor, *piece.parameter, piece.first, piece.count, lane.host());
        const std::lock_guard lock(mutex);
        lane.send(context, piece, tensor.second.dtype, use);
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

// Fills `values` with the elements from `first` on of the parameter with index `number` in the model.
void fill(const WeightContext& context, const Init& init, const Tensor& values, uint64_t seed, uint32_t number, int64_t first) {
  const Stream stream = context.device->compute_stream();
  if (init.kind == Init::Kind::normal) context.ops->fill_normal(values, seed, number, first, 0, init.value, stream);
  else if (init.kind == Init::Kind::uniform) context.ops->fill_uniform(values, seed, number, first, init.value, stream);
  else context.ops->fill(values, init.value, stream);
}

}  // namespace

WeightContext frozen_of(WeightContext context) {
  std::erase_if(context.units, [](const Unit* unit) { return unit->trainable; });
  return context;
}

int64_t loading_scratch_bytes() { return kLanes * kPieceBytes; }
int64_t init_scratch_bytes() { return kPieceBytes; }

void load_weights(const WeightContext& context, const SafetensorsReader& reader, int64_t threads, Source source) {
  if (source == Source::checkpoint) check_aliases(context.units, reader);
  read(context, reader, threads, measured_pieces(context, source), Use::measured);
  read(context, reader, threads, kept_pieces(context, source), Use::stored);
}

void init_weights(const WeightContext& context, uint64_t seed, Filled filled) {
  const Stream stream = context.device->compute_stream();
  ParameterStore& store = *context.store;
  const auto is_meant = [&](const Parameter& parameter) { return filled == Filled::all || parameter.source == Source::fresh; };
  for (const Unit* unit : context.units)
    for (const Parameter& parameter : unit->parameters())
      if (is_meant(parameter) && store.scaled(*unit, parameter)) store.reset_scale(*unit, parameter, stream);
  for (const Use use : {Use::measured, Use::stored}) {
    uint32_t number = 0;                   // index of the parameter in the model: selects the random stream
    for (const Unit* unit : context.units) {
      const uint32_t first_number = number;
      number += static_cast<uint32_t>(unit->parameters().size());
      const auto draw = [&](const Parameter& parameter, int64_t first, int64_t count) {
        if (!is_meant(parameter)) return;
        const uint32_t mine = first_number + static_cast<uint32_t>(&parameter - unit->parameters().data());
        for (int64_t at = first; at < first + count; at += kPieceElements) {
          const Tensor values{context.scratch.data, DType::f32, {std::min(kPieceElements, first + count - at)}};
          fill(context, parameter.init, values, seed, mine, at);
          if (use == Use::measured) store.measure(*unit, parameter, values, stream);
          else store.write(*unit, parameter, at, values, stream);
        }
      };
      if (use == Use::stored) store.for_each_range(*unit, draw);
      else
        for (const Parameter& parameter : unit->parameters())
          if (store.scaled(*unit, parameter)) draw(parameter, 0, parameter.numel());
    }
  }
  context.device->synchronize();
}

}  // namespace blipft
