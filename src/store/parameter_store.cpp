// Implements ParameterStore: allocation, access and updates; see store.h.
#include "blipft/store.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "store/layout.h"

namespace blipft {

namespace {
constexpr int64_t kPoolAlignment = 64;     // elements
constexpr int64_t kDecodedElements = int64_t{1} << 20;  // elements of a state that are decoded to f32 at a time
constexpr int64_t kUnitsInFlight = 2;      // units with transient gradients that updates may still read
}  // namespace

// Contiguous buffers, one for each owner, name, dtype, place and readers, in the order in which they are requested.
class ParameterStore::Pools {
 public:
  struct Kind {
    Owner owner;
    std::string name;
    DType dtype;
    MemorySpace space = MemorySpace::device;
    Readers readers = Readers::own_rank;
    bool operator==(const Kind&) const = default;
  };
  static int64_t aligned(int64_t elements) { return (elements + kPoolAlignment - 1) / kPoolAlignment * kPoolAlignment; }

  /// Requests `elements` elements of memory for `target`.
  void add(Tensor& target, const Kind& kind, int64_t elements) {
    requests_.push_back({&target, reserve(kind, elements), elements});
  }
  /// Adds `elements` elements to a buffer; returns the index of the buffer and the first element.
  std::pair<size_t, int64_t> reserve(const Kind& kind, int64_t elements) {
    size_t i = 0;
    while (i < pools_.size() && !(pools_[i].kind == kind)) ++i;
    if (i == pools_.size()) pools_.push_back({kind, 0, {}});
    const int64_t first = pools_[i].elements;
    pools_[i].elements += aligned(elements);
    return {i, first};
  }
  /// Allocates the buffers and sets all targets; returns the targets.
  std::vector<Tensor*> declare(Arena& arena) {
    for (Pool& pool : pools_)
      pool.tensor = arena.persistent(pool.kind.owner, pool.kind.name, pool.kind.dtype, {pool.elements}, pool.kind.space,
                                     pool.kind.readers);
    std::vector<Tensor*> targets;
    for (const auto& [target, range, elements] : requests_) {
      *target = pools_[range.first].tensor.part(range.second, {elements});
      targets.push_back(target);
    }
    return targets;
  }
  /// Returns the whole buffer; absent if it was never requested.
  Tensor whole(const Kind& kind) const {
    for (const Pool& pool : pools_)
      if (pool.kind == kind) return pool.tensor;
    return {};
  }

 private:
  struct Pool {
    Kind kind;
    int64_t elements;
    Tensor tensor;
  };
  struct Request {
    Tensor* target;
    std::pair<size_t, int64_t> range;      // index of the pool, first element in it
    int64_t elements;
  };
  std::vector<Pool> pools_;
  std::vector<Request> requests_;
};

ParameterStore::ParameterStore(StoreContext context) : context_(std::move(context)), held_(context_.units.size()) {
  static const StoragePolicy kPlain;
  if (!context_.policy) context_.policy = &kPlain;
  for (const Unit* unit : context_.units) lay_out(*unit);
  // Trained units come first, one kind after another: related tensors are adjacent, at equal offsets on every rank.
  Pools pools;
  for (bool trained : {true, false})
    for (const Unit* unit : context_.units)
      if (unit->trainable == trained) request_weights(pools, *unit);
  for (const Unit* unit : context_.units)
    if (unit->trainable && context_.types.master)
      pools.add(of(*unit).master, {Owner::parameters, "master weights", DType::f32, master_space()},
                of(*unit).shard.count);
  const Pools::Kind gradients{.owner = Owner::gradients, .name = "gradients", .dtype = context_.types.gradient,
                              .readers = context_.readers_of_gradients()};
  for (const Unit* unit : context_.units)
    if (unit->trainable && !transient_gradients()) pools.add(of(*unit).gradient, gradients, of(*unit).shard.count);
  int64_t squares = 0;
  for (const Unit* unit : context_.units)
    if (unit->trainable) request_states(pools, *unit, squares);
  tensors_ = pools.declare(*context_.arena);
  gradients_ = pools.whole(gradients);
  if (trains_)
    squares_ = context_.arena->persistent(Owner::optimizer, "sums of squares of gradients", DType::f32, {squares});
  if (max_decoded_ > 0)
    staging_ = context_.arena->persistent(Owner::workspace, "optimizer states being updated", DType::f32,
                                          {static_cast<int64_t>(max_decoded_) * kDecodedElements});
}

void ParameterStore::lay_out(const Unit& unit) {
  Held& held = of(unit);
  UnitSections cut = cut_sections(context_, unit);
  held.flat = cut.flat;
  held.sections = std::move(cut.sections);
  held.shard = held.flat ? held.sections[0].shard : shard_of(unit.numel(), kPoolAlignment, 1, 0);
  for (Section& section : held.sections)
    section.mine = {section.format, std::vector<Tensor>(section.format->planes().size()), section.shard.count};
  if (!unit.trainable) return;
  trains_ = true;
  for (SpecRange& range : spec_ranges(context_, unit, held.shard)) {
    std::vector<Stored> states;
    size_t decoded = 0;
    for (const StateSpec& spec : range.specs) {
      states.push_back({spec.format, std::vector<Tensor>(spec.format->planes().size()), range.count});
      if (spec.format->plain()) continue;
      BLIPFT_CHECK(kDecodedElements % spec.format->block() == 0, "blocks of ", spec.format->block(), " elements");
      if (spec.initial != 0) max_decoded_ = std::max<size_t>(max_decoded_, 1);
      ++decoded;
    }
    const bool decodes = !context_.optimizer->takes(range.specs);
    if (decodes) max_decoded_ = std::max(max_decoded_, decoded);
    held.ranges.push_back({.first = range.first, .count = range.count, .squares = 0, .decoded = decodes,
                           .decays = range.decays, .specs = std::move(range.specs), .states = std::move(states)});
  }
  if (!transient_gradients()) return;
  held.consumed = context_.device->create_event();
  max_consumed_bytes_ = std::max(
      max_consumed_bytes_, kUnitsInFlight * held.shard.padded * dtype_size(context_.types.gradient));
}

void ParameterStore::request_weights(Pools& pools, const Unit& unit) {
  for (Section& section : of(unit).sections) {
    const std::vector<Format::Plane> planes = section.format->planes();
    const int64_t blocks = section.format->blocks(section.shard.count);
    const bool compute = section.format == &plain_format(context_.types.compute);
    for (size_t i = 0; i < planes.size(); ++i)
      pools.add(section.mine.planes[i],
                {Owner::parameters,
                 compute ? "parameters" : concat("parameters as ", section.format->name(), ": ", planes[i].name),
                 planes[i].dtype, weights_space(), context_.readers_of_weights()},
                blocks * planes[i].per_block);
    if (section.matrices > 0)
      pools.add(section.scales, {Owner::parameters, concat("parameters as ", section.format->name(), ": scales"), DType::f32},
                section.matrices * kScaleWords);
  }
}

namespace {

// Returns the name of a state's plane for tables.
std::string state_name(const StateSpec& spec, const Format::Plane& plane) {
  return spec.format->plain() ? spec.name : concat(spec.name, " as ", spec.format->name(), ": ", plane.name);
}

// Calls body(i, p, name, plane, elements) for each plane p of each state i of a range of `count` elements.
template <class Body>
void for_each_plane(const std::vector<StateSpec>& specs, int64_t count, Body body) {
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::vector<Format::Plane> planes = specs[i].format->planes();
    for (size_t p = 0; p < planes.size(); ++p)
      body(i, p, state_name(specs[i], planes[p]), planes[p], specs[i].format->blocks(count) * planes[p].per_block);
  }
}

}  // namespace

// Ranks may have different ranges. Each reserves memory for the rank that needs most, so that all arenas are equal.
void ParameterStore::request_states(Pools& pools, const Unit& unit, int64_t& squares) {
  Held& held = of(unit);
  using Kind = std::tuple<std::string, DType, MemorySpace>;
  std::map<Kind, int64_t> room;
  int64_t max_squares = 0;
  for (int64_t index = 0; index < context_.shards; ++index) {
    std::map<Kind, int64_t> needed;
    int64_t sums = 0;
    Shard shard = held.shard;
    shard.first = index * shard.count;
    for (const SpecRange& range : spec_ranges(context_, unit, shard)) {
      for_each_plane(range.specs, range.count,
                     [&](size_t i, size_t, const std::string& name, const Format::Plane& plane, int64_t elements) {
                       needed[{name, plane.dtype, range.specs[i].space}] += Pools::aligned(elements);
                     });
      sums += squares_count(range.count);
    }
    for (const auto& [kind, elements] : needed) room[kind] = std::max(room[kind], elements);
    max_squares = std::max(max_squares, sums);
  }
  int64_t at = squares;
  squares += max_squares;
  for (Range& range : held.ranges) {
    range.squares = at;
    at += squares_count(range.count);
    for_each_plane(range.specs, range.count,
                   [&](size_t i, size_t p, const std::string& name, const Format::Plane& plane, int64_t elements) {
                     const MemorySpace space = range.specs[i].space;
                     pools.add(range.states[i].planes[p], {Owner::optimizer, name, plane.dtype, space}, elements);
                     room[{name, plane.dtype, space}] -= Pools::aligned(elements);
                   });
  }
  for (const auto& [kind, left] : room)
    pools.reserve({Owner::optimizer, std::get<0>(kind), std::get<1>(kind), std::get<2>(kind)}, left);
}

void ParameterStore::bind() {
  Device& device = *context_.device;
  const Stream stream = device.compute_stream();
  for (Tensor* tensor : tensors_) *tensor = context_.arena->resolve(*tensor);
  for (Tensor* tensor : {&gradients_, &squares_, &staging_}) *tensor = context_.arena->resolve(*tensor);
  // Zeroes everything, with gaps and padding: the update processes these too and must find zeros.
  const auto zero = [&](const Tensor& tensor) {
    if (tensor) device.zero(tensor.data, tensor.bytes(), stream);
  };
  zero(gradients_);
  zero(squares_);
  for (Held& held : held_) {
    for (const Section& section : held.sections) {
      for (const Tensor& plane : section.mine.planes) zero(plane);
      zero(section.scales);
    }
    zero(held.master);
    for (Range& range : held.ranges)
      for (size_t i = 0; i < range.states.size(); ++i) {
        if (range.specs[i].initial == 0)
          for (const Tensor& plane : range.states[i].planes) zero(plane);
        else
          fill_state(range.states[i], range.specs[i].initial, stream);
      }
  }
}

void ParameterStore::fill_state(const Stored& state, float value, Stream stream) {
  if (state.plain()) return context_.ops->fill(state.tensor(), value, stream);
  for (int64_t first = 0; first < state.elements; first += kDecodedElements) {
    const int64_t count = std::min(kDecodedElements, state.elements - first);
    const Tensor values = staging_.part(0, {count});
    context_.ops->fill(values, value, stream);
    state.part(first, count).encode(*context_.ops, values, stream);
  }
}

int64_t ParameterStore::stored_bytes(const Unit& unit) const {
  int64_t sum = 0;
  for (const Section& section : of(unit).sections) sum += section.mine.bytes();
  return sum;
}

int64_t ParameterStore::gathered_bytes(const Unit& unit) const { return stored_bytes(unit) * context_.shards; }

Tensor ParameterStore::weights(const Unit& unit) const {
  BLIPFT_CHECK(flat(unit), "unit ", unit.name(), " is not held in the compute dtype");
  return of(unit).sections[0].mine.tensor();
}

DType ParameterStore::weight_dtype(const Unit& unit) const {
  return of(unit).master ? DType::f32 : context_.types.compute;
}

void ParameterStore::for_each_range(const Unit& unit,
                                    const std::function<void(const Parameter&, int64_t, int64_t)>& body) const {
  for (const Section& section : of(unit).sections)
    for (const Section::Piece& piece : section.pieces) {
      const int64_t first = std::max(piece.at, section.shard.first);
      const int64_t end = std::min(piece.at + piece.parameter->numel(), section.shard.first + section.shard.count);
      if (first < end) body(*piece.parameter, first - piece.at, end - first);
    }
}

void ParameterStore::write(const Unit& unit, const Parameter& parameter, int64_t first, const Tensor& values,
                           Stream stream) {
  Held& held = of(unit);
  for (const Section& section : held.sections)
    for (const Section::Piece& piece : section.pieces) {
      if (piece.parameter != &parameter) continue;
      const int64_t at = piece.at + first - section.shard.first, block = section.format->block();
      with_scale(section, piece, section.mine.part(at, (values.numel() + block - 1) / block * block))
          .encode(*context_.ops, values, stream);
    }
  if (held.master)
    context_.ops->cast(values, held.master.part(parameter.offset + first - held.shard.first, {values.numel()}), stream);
}

Tensor ParameterStore::gradient(const Unit& unit) {
  Held& held = of(unit);
  if (!transient_gradients() || held.gradient || !unit.trainable) return held.gradient;
  Device& device = *context_.device;
  // The limit is some whole units: many shards, or many small units, so that compute hardly has to wait for updates.
  while (consumed_bytes_ > max_consumed_bytes_) {
    device.wait(device.compute_stream(), consumed_.front().done);
    consumed_bytes_ -= consumed_.front().gradient.bytes();
    context_.arena->give(consumed_.front().gradient);
    consumed_.pop_front();
  }
  const DType type = context_.types.gradient;
  held.gradient = context_.arena->take(Owner::gradients, "gradients in flight", type, {held.shard.count},
                                         context_.readers_of_gradients());
  for (const auto& [begin, end] : unit.gaps(held.shard.padded)) {
    const int64_t first = std::max(begin, held.shard.first), last = std::min(end, held.shard.first + held.shard.count);
    if (first < last)
      device.zero(held.gradient.part(first - held.shard.first, {last - first}).data, (last - first) * dtype_size(type),
                  device.compute_stream());
  }
  return held.gradient;
}

std::vector<ParameterStore::StateRange> ParameterStore::state(const Unit& unit, size_t i) const {
  std::vector<StateRange> ranges;
  for (const Range& range : of(unit).ranges) ranges.push_back({range.first, range.count, range.states.at(i)});
  return ranges;
}

std::vector<ParameterStore::Part> ParameterStore::parts(const Unit& unit) const {
  std::vector<Part> parts;
  if (!unit.trainable) return parts;
  const Held& held = of(unit);
  const Tensor& weights = held.master ? held.master : held.sections[0].mine.tensor();
  for_each_range(unit, [&](const Parameter& parameter, int64_t first, int64_t count) {
    const int64_t at = parameter.offset + first - held.shard.first;  // position in the shard
    parts.push_back({held.master ? "master" : "weight", &parameter, parameter.shape, first, weights.part(at, {count})});
    const std::vector<StateSpec> specs = state_specs(context_, unit, parameter);
    for (const Range& range : held.ranges) {
      if (at < range.first || at >= range.first + range.count) continue;
      for (size_t i = 0; i < specs.size(); ++i) {
        const Format& format = *specs[i].format;
        if (format.plain()) {
          parts.push_back({specs[i].name, &parameter, parameter.shape, first,
                           range.states[i].tensor().part(at - range.first, {count})});
          continue;
        }
        // Blocks count from the parameter's start, and every range begins with a whole block.
        const std::vector<Format::Plane> planes = format.planes();
        for (size_t p = 0; p < planes.size(); ++p) {
          const int64_t each = planes[p].per_block, block = format.block();
          parts.push_back({concat(specs[i].name, ".", format.name(), ".", planes[p].name), &parameter,
                           {format.blocks(parameter.numel()) * each}, first / block * each,
                           range.states[i].planes[p].part((at - range.first) / block * each,
                                                          {format.blocks(count) * each})});
        }
      }
    }
  });
  return parts;
}

void ParameterStore::round_masters(const Unit& unit, Stream stream) {
  if (const Tensor& master = of(unit).master) context_.ops->cast(master, weights(unit), stream);
}

ParameterStore::UpdateTraffic ParameterStore::update_traffic(const Unit& unit) const {
  const Held& held = of(unit);
  UpdateTraffic traffic;
  if (!unit.trainable) return traffic;
  const auto reads = [&](int64_t bytes, MemorySpace space) {
    (space == MemorySpace::device ? traffic.device : traffic.host_read) += bytes;
  };
  const auto writes = [&](int64_t bytes, MemorySpace space) {
    (space == MemorySpace::device ? traffic.device : traffic.host_written) += bytes;
  };
  const auto changes = [&](int64_t bytes, MemorySpace space) { reads(bytes, space), writes(bytes, space); };
  traffic.device += held.shard.count * dtype_size(context_.types.gradient);
  if (held.master) changes(held.master.bytes(), master_space());
  // With masters, the update writes the weights and does not read them.
  if (!held.master) reads(stored_bytes(unit), weights_space());
  writes(stored_bytes(unit), weights_space());
  for (const Range& range : held.ranges)
    for (size_t i = 0; i < range.states.size(); ++i)
      changes(range.states[i].bytes(), range.specs[i].space);
  return traffic;
}

void ParameterStore::update(const Unit& unit, const Tensor& scalars, Stream stream) {
  Held& held = of(unit);
  for (const Range& range : held.ranges) {
    // If the optimizer cannot read the states, they are decoded, a piece at a time, and encoded after the update.
    const int64_t step = range.decoded ? kDecodedElements : range.count;
    for (int64_t first = 0; first < range.count; first += step)
      update_part(unit, range, first, std::min(step, range.count - first), scalars, stream);
  }
  if (!transient_gradients()) return;
  context_.device->record(held.consumed, stream);
  consumed_.push_back({held.gradient, held.consumed});
  consumed_bytes_ += held.gradient.bytes();
  held.gradient = {};
}

void ParameterStore::update_part(const Unit& unit, const Range& range, int64_t first, int64_t count,
                                 const Tensor& scalars, Stream stream) {
  const Held& held = of(unit);
  const auto part = [&](const Tensor& tensor) {
    return tensor ? tensor.part(range.first + first, {count}) : Tensor{};
  };
  Optimizer::Operands operands{part(held.sections[0].mine.tensor()), part(held.master), part(held.gradient)};
  operands.squares = squares_.part(range.squares + first / kSquaresSpan, {squares_count(count)});
  operands.decays = range.decays;
  operands.unit = unit.index;
  operands.first = held.shard.first + range.first + first;
  const Tensor& values = held.master ? operands.master : operands.param;
  if ((held.master ? master_space() : weights_space()) == MemorySpace::host) operands.link_bytes += dtype_size(values.dtype);
  int64_t staged = 0;
  for (size_t i = 0; i < range.states.size(); ++i) {
    Stored mine = range.states[i].part(first, count);
    if (mine.plain() && range.specs[i].space == MemorySpace::host) operands.link_bytes += dtype_size(mine.tensor().dtype);
    if (range.decoded && !mine.plain()) {
      const Tensor decoded = staging_.part(staged++ * kDecodedElements, {count});
      mine.decode(*context_.ops, decoded, stream);
      mine = {&plain_format(DType::f32), {decoded}, count};
    }
    operands.state.push_back(std::move(mine));
  }
  context_.optimizer->update(*context_.ops, operands, scalars, stream);
  for (size_t i = 0; i < range.states.size(); ++i)
    if (range.decoded && !range.states[i].plain())
      range.states[i].part(first, count).encode(*context_.ops, operands.state[i].tensor(), stream);
}

void ParameterStore::give_gradients() {
  for (const Consumed& consumed : consumed_) context_.arena->give(consumed.gradient);
  consumed_.clear();
  consumed_bytes_ = 0;
}

}  // namespace blipft
