// Strategy fsdp: gathers units ahead of use in the recorded order and reduce-scatters gradients, in parallel to the
// compute stream. Reductions run in the communication stream. Gathers run in the gather stream if they are copies, else
// in the communication stream too. After a copy the stamp stream reads the clock, and compute waits for that reading.
//
// With weights in host memory, a rank first copies its own shard over the link in the gather stream; collectives then
// bring the other ranks' shards. If a unit is sharded over one rank only (single, ddp), this copy is the whole gather,
// the gradient is the store's own, and nothing is reduce-scattered. The updates of a step write to host memory; the
// compute stream has waited for them before the first gather of the next step.
//
// With several shard groups (hybrid), the shard of a unit's gradient, once it contains all micro-batches of its group,
// is all-reduced over the replicate group. The sum over all ranks is thus a sum over the ranks of a shard group, in the
// order of its communicator (mpi and direct reductions: in rank order), then a sum over shard groups; each of the two
// rounds to the gradient's dtype. Every rank of a replicate group gets the same bits from its all-reduce, so that
// replicas stay equal. All collectives of shard and replicate groups run in the communication stream. Collectives over
// all ranks run in the compute stream, before it has forked in a step and after it has joined, so
// all ranks use one order.
//
// The arena assigns memory in program order, and events tie the streams to that order. A gather or reduce-scatter waits
// for all compute enqueued before it, because its buffer may overlap memory which that compute still uses. Compute
// waits for a gather before the unit's first use, and for a reduce-scatter before its buffer is given back.
#include "strategies/sharded.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace blipft {

namespace {
constexpr size_t kReducedAfter = 3;        // after this many acquires, compute hardly has to wait for a reduction
// A reduction has certainly finished after this many acquires of this many times its bytes: gathers may use its memory.
constexpr size_t kReducedAfterAcquires = 8;
constexpr int64_t kReducedAfterBytes = 4;
}

Sharded::Sharded(const StrategyContext& context, ShardedSettings settings)
    : Strategy(context), settings_(std::move(settings)), gathered_(context.units.size()),
      full_gradients_(context.units.size()), reduced_(context.units.size()) {
  for (Gathered& unit : gathered_) unit.arrived = context_.device->create_event();
  for (size_t i = 0; i <= context_.units.size(); ++i) pending_events_.push_back(context_.device->create_event());
  compute_reached_ = context_.device->create_event();
  observed_ = context_.device->create_event();
  replicated_ = context_.device->create_event();
  fence_ = context_.arena->persistent(Owner::communication, "fence", DType::f32, {1});
  landed_ = context_.arena->persistent(Owner::communication, "fence", DType::i64, {1});
}

void Sharded::bind() {
  fence_ = context_.arena->resolve(fence_);
  landed_ = context_.arena->resolve(landed_);
  context_.device->zero(fence_.data, fence_.bytes(), context_.device->compute_stream());
}

void Sharded::learn_from(const Strategy& dry_run) {
  const auto& other = dynamic_cast<const Sharded&>(dry_run);
  training_ = {other.training_.order, true};
  for (size_t kind = 0; kind < kEvaluations; ++kind)
    evaluations_[kind] = {other.evaluations_[kind].order, !other.evaluations_[kind].order.empty()};
  others_ = other.others_;
  memory_limit_ = other.memory_limit_;
  measured_ = true;
}

// Direct gathers read the shards of other ranks of the shard group without synchronization. A unit's shards change
// after its last reduce-scatter, in which every rank of the group takes part after its last gather of the unit, or,
// with clipping, in update(), after the all-reduce of the gradient norm, in which all ranks take part. The all-reduce
// in fence() runs after the updates of every rank of the group, so that later gathers read new weights. Ranks outside
// of the group need not wait: they do not read these shards, and the group does not read theirs. With hybrid sharding,
// the all-reduce between the reduce-scatter and the update only delays the update.
void Sharded::begin_step(const Tensor& scalars, float max_norm) {
  Strategy::begin_step(scalars, max_norm);
  units_ = UnitsOfEvaluation::as_used;
  begin(training_);
  reduced_.assign(reduced_.size(), false);
}

// As in a training step, the gathers of an evaluation precede the next step's reduce-scatters on every rank of the
// group.
void Sharded::begin_evaluation(size_t kind, UnitsOfEvaluation units) {
  Strategy::begin_evaluation(kind, units);
  units_ = units;
  if (!keeps()) return begin(evaluations_[kind]);
  acquire_order_ = &evaluations_[kind];           // evaluations_[kind] has no order, so prefetch() gathers nothing
  // Kept tensors are taken before all others and keep their contents for later passes.
  for (const Unit* unit : context_.units) take(*unit, true);
  if (units == UnitsOfEvaluation::kept) return;
  fence();
  for (const Unit* unit : context_.units) move(*unit);
}

void Sharded::fence() {
  Comm& shard = *context_.groups.shard;
  if (!shard.direct_gathers()) return;
  BLIPFT_CHECK(!from_host(), "direct gathers read the other ranks' shards, which lie in the host");
  shard.all_reduce(fence_, context_.device->compute_stream());
}

void Sharded::begin(AcquireOrder& course) {
  fence();
  acquire_order_ = &course;
  if (!course.order.empty()) course.known = true;
  position_ = issued_ = 0;
  ahead_bytes_ = acquired_bytes_ = 0;
}

void Sharded::follow_compute(Stream stream) {
  context_.device->record(compute_reached_, context_.device->compute_stream());
  context_.device->wait(stream, compute_reached_);
}

// Takes memory for a unit that is not gathered.
void Sharded::take(const Unit& unit, bool kept) {
  Gathered& entry = gathered_[static_cast<size_t>(unit.index)];
  Arena& arena = *context_.arena;
  constexpr const char* kName = "gathered units";
  for (const ParameterStore::Section& section : store_.sections(unit)) {
    Stored& whole = entry.sections.emplace_back(Stored{section.format, {}, section.shard.padded});
    for (const Tensor& plane : section.mine.planes) {
      const Shape shape = {plane.numel() * store_.shards()};
      whole.planes.push_back(kept ? arena.take_kept(Owner::communication, kName, plane.dtype, shape)
                                  : arena.take(Owner::communication, kName, plane.dtype, shape));
    }
  }
  entry.awaited = kept;
  own_bytes_ += store_.gathered_bytes(unit);
}

void Sharded::gather(const Unit& unit) {
  take(unit, false);
  move(unit);
}

// Enqueues the all-gather of a unit whose memory take() has taken.
void Sharded::move(const Unit& unit) {
  Device& device = *context_.device;
  Gathered& entry = gathered_[static_cast<size_t>(unit.index)];
  const int64_t bytes = store_.gathered_bytes(unit);
  entry.awaited = false;
  const Stream stream = gather_stream();
  follow_compute(stream);
  const Stream link = device.gather_stream();
  if (from_host() && link.handle != stream.handle) device.wait(link, compute_reached_);
  // A kernel between two copies delays the copy engine by some 50 us, so another stream reads the clock. Compute that
  // waits for a copy directly, instead of for a kernel after it, starts 20 to 50 us late.
  const Stream stamps = copies() ? device.stamp_stream() : stream;
  const auto follow = [&] {
    device.record(observed_, stream);
    device.wait(stamps, observed_);
  };
  if (context_.observer) {
    follow();
    context_.observer->begin(CommObserver::Kind::gather, unit, bytes, stamps);
  }
  for (size_t s = 0; s < entry.sections.size(); ++s)
    for (size_t p = 0; p < entry.sections[s].planes.size(); ++p)
      gather_shards(store_.sections(unit)[s].mine.planes[p], store_.weights_space(), entry.sections[s].planes[p], link,
                    stream);
  follow();
  if (context_.observer) context_.observer->end(CommObserver::Kind::gather, unit, bytes, stamps);
  else if (copies()) device.timestamp(landed_.as<int64_t>(), stamps);
  device.record(entry.arrived, stamps);
}

int64_t Sharded::warm_up_bytes() const {
  int64_t bytes = 0;
  for (const Unit* unit : context_.units)
    for (const ParameterStore::Section& section : store_.sections(*unit))
      for (const Tensor& plane : section.mine.planes) bytes = std::max(bytes, plane.bytes() * store_.shards());
  return bytes;
}

void Sharded::warm_up(const Tensor& gathered, const Tensor& summed) {
  const Stream stream = context_.device->comm_stream();
  Comm& shard = *context_.groups.shard;
  if (shard.direct_gathers()) shard.all_reduce(fence_, stream);
  const auto start_of = [&](const Tensor& memory, const Unit& unit, DType dtype, int64_t elements) {
    BLIPFT_CHECK(elements * dtype_size(dtype) <= memory.numel(), "unit ", unit.name(), " takes more than the ",
                 memory.numel(), " bytes of scratch memory");
    return Tensor{memory.data, dtype, {elements}};
  };
  std::set<std::tuple<int64_t, DType, bool>> sizes;
  for (const Unit* unit : context_.units) {
    for (const ParameterStore::Section& section : store_.sections(*unit))
      for (const Tensor& plane : section.mine.planes)
        if (sizes.insert({plane.numel(), plane.dtype, false}).second)
          gather_shards(plane, store_.weights_space(),
                        start_of(gathered, *unit, plane.dtype, plane.numel() * store_.shards()), stream, stream);
    const Shard& range = store_.shard(*unit);
    const DType type = store_.types().gradient;
    if (!unit->trainable || !sizes.insert({range.count, type, true}).second) continue;
    if (whole()) {
      if (context_.groups.hybrid()) context_.groups.replicate->all_reduce(zero_gradient(*unit, summed), stream);
      continue;
    }
    const Tensor full = start_of(summed, *unit, type, range.padded), mine = full.part(shard.rank() * range.count, {range.count});
    shard.reduce_scatter(full, mine, stream);
    if (shard.reduce_scatter_accumulates(full)) shard.reduce_scatter(full, mine, stream, true);
    if (context_.groups.hybrid()) context_.groups.replicate->all_reduce(mine, stream);
  }
}

// While the dry run measures (order known, limit unknown): records the peak of other owners since the previous acquire.
void Sharded::note_memory() {
  if (acquire_order_ != &training_ || !training_.known || measured_) return;
  const int64_t peak = context_.arena->take_peak_without_communication();
  if (position_ == 0) return;
  others_.resize(std::max(others_.size(), position_));
  others_[position_ - 1] = peak;
}

// Returns true if `bytes` more bytes fit below memory_limit_ from now until the acquire at position `until`. The
// buffers of the next units must fit too; otherwise compute would wait for reductions to end.
bool Sharded::room_for(int64_t bytes, size_t until) const {
  if (memory_limit_ == 0 || settings_.hold || acquire_order_ != &training_ || position_ == 0) return false;
  int64_t maximum = 0;
  for (size_t p = position_ - 1; p < std::max(until, position_) && p < others_.size(); ++p)
    maximum = std::max(maximum, others_[p]);
  return maximum + own_bytes_ + bytes + 2 * settings_.prefetch_bytes <= memory_limit_;
}

// Gathers units for the next acquires, as far as prefetch_bytes or memory that is idle until then allows.
void Sharded::prefetch() {
  while (acquire_order_->known && issued_ < acquire_order_->order.size()) {
    const Unit& unit = *context_.units[static_cast<size_t>(acquire_order_->order[issued_])];
    const Gathered& entry = gathered_[static_cast<size_t>(unit.index)];
    const int64_t bytes = store_.gathered_bytes(unit);
    if (entry.sections.empty() && ahead_bytes_ > 0 && ahead_bytes_ + bytes > settings_.prefetch_bytes &&
        !room_for(bytes, issued_)) {
      if (pending_.empty() || !reduction_is_complete(pending_.front())) return;
      retire_oldest();
      continue;
    }
    promise_next();
  }
}

// Promises a unit to the next acquire without one: a unit that is already gathered, or else a new gather.
void Sharded::promise_next() {
  const Unit& unit = *context_.units[static_cast<size_t>(acquire_order_->order[issued_++])];
  Gathered& entry = gathered_[static_cast<size_t>(unit.index)];
  if (entry.sections.empty()) {
    gather(unit);
    ahead_bytes_ += store_.gathered_bytes(unit);
  }
  ++entry.promised;
}

bool Sharded::reduction_is_complete(const Pending& reduction) const {
  return reduction.position + kReducedAfterAcquires < position_ &&
         acquired_bytes_ - reduction.acquired_bytes >= kReducedAfterBytes * reduction.full.bytes();
}

Tensor Sharded::acquire(const Unit& unit, AcceptedEncodings left) {
  Gathered& entry = gathered_[static_cast<size_t>(unit.index)];
  if (keeps()) {
    ++entry.uses;
    return usable(unit, left);
  }
  note_memory();
  if (!acquire_order_->known) {
    acquire_order_->order.push_back(unit.index);
    if (entry.sections.empty()) gather(unit);
    ++entry.promised;
  } else {
    BLIPFT_CHECK(position_ < acquire_order_->order.size() && acquire_order_->order[position_] == unit.index, "unit ", unit.name(),
                 " is acquired out of the known order at place ", position_);
    if (issued_ == position_) promise_next();  // nothing was gathered ahead: gather this unit first
    ++position_;
  }
  if (!entry.awaited) {
    context_.device->wait(context_.device->compute_stream(), entry.arrived);
    entry.awaited = true;
    if (acquire_order_->known) ahead_bytes_ -= store_.gathered_bytes(unit);
  }
  const Tensor full = usable(unit, left);
  ++entry.uses;
  acquired_bytes_ += store_.gathered_bytes(unit);
  // The last reductions of a backward would keep their buffers through the next forward, although they have finished.
  while (!pending_.empty() && pending_.front().position + kReducedAfter < position_ && !room_for(0, position_))
    retire_oldest();
  prefetch();
  return full;
}

UnitWeights Sharded::acquire_quantized(const Unit& unit, AcceptedEncodings accepted) {
  const Tensor full = acquire(unit, accepted);
  return {full, store_.as_stored(unit, gathered_[static_cast<size_t>(unit.index)].sections, accepted)};
}

void Sharded::release(const Unit& unit) {
  Gathered& entry = gathered_[static_cast<size_t>(unit.index)];
  BLIPFT_CHECK(entry.uses > 0, "unit ", unit.name(), " is released without being acquired");
  if (!keeps()) --entry.promised;
  // Decoded units are freed at once, even if the gathered sections stay: decoding again costs less than the memory.
  if (--entry.uses == 0 && !store_.flat(unit)) {
    context_.arena->give(entry.full);
    entry.full = {};
  }
  if (entry.promised == 0 && !holds() && !keeps()) drop(unit);
}

// Returns the unit in the compute dtype, after making the compute stream wait for its gather.
Tensor Sharded::usable(const Unit& unit, AcceptedEncodings left) {
  Gathered& entry = gathered_[static_cast<size_t>(unit.index)];
  if (entry.full) {
    BLIPFT_CHECK(store_.flat(unit) || entry.left == left, "unit ", unit.name(),
                 " is acquired with its codes and without");
    return entry.full;
  }
  entry.left = left;
  if (store_.flat(unit)) return entry.full = entry.sections[0].tensor();
  entry.full =
      context_.arena->take(Owner::parameters, "decoded units", store_.types().compute, {store_.shard(unit).padded});
  store_.decode(unit, entry.sections, entry.full, context_.device->compute_stream(), left);
  return entry.full;
}

void Sharded::drop(const Unit& unit) {
  Gathered& entry = gathered_[static_cast<size_t>(unit.index)];
  own_bytes_ -= store_.gathered_bytes(unit);
  for (const Stored& section : entry.sections)
    for (const Tensor& plane : section.planes) context_.arena->give(plane);
  entry.sections.clear();
  entry.full = {};
}

UnitGradient Sharded::gradient(const Unit& unit) {
  if (whole()) {
    const bool accumulate = reduced_[static_cast<size_t>(unit.index)];
    reduced_[static_cast<size_t>(unit.index)] = true;
    return {store_.gradient(unit), accumulate};
  }
  Tensor& full = full_gradients_[static_cast<size_t>(unit.index)];
  const bool accumulate = static_cast<bool>(full);
  if (!full) {
    const PrecisionTypes& types = store_.types();
    full = context_.arena->take(Owner::communication, "gradients of units in flight", types.gradient,
                                {store_.shard(unit).padded}, Readers::peers);
    own_bytes_ += full.bytes();
    for (const auto& [first, end] : unit.gaps(store_.shard(unit).padded))
      context_.device->zero(full.part(first, {end - first}).data, (end - first) * dtype_size(types.gradient),
                            context_.device->compute_stream());
  }
  return {full, accumulate};
}

void Sharded::pause(const Unit& unit) {
  if (!settings_.hold && !whole()) reduce(unit);
}

void Sharded::publish(const Unit& unit) {
  if ((settings_.hold || whole()) && !last_micro_batch()) return;
  const Device& device = *context_.device;
  const bool hybrid = context_.groups.hybrid();
  // Without a collective, no other stream is used: a stream that nothing joins again cannot be captured.
  if (whole() && !hybrid) return gradient_final(unit, device.compute_stream());
  if (whole()) follow_compute(device.comm_stream());
  else reduce(unit);
  if (!last_micro_batch()) return;
  if (hybrid) reduce_over_groups(unit);
  gradient_final(unit, device.comm_stream());
}

// Reduce-scatters the unit's full gradient into this rank's shard and moves the buffer to pending_.
void Sharded::reduce(const Unit& unit) {
  Device& device = *context_.device;
  const Stream comm = device.comm_stream();
  Tensor& full = full_gradients_[static_cast<size_t>(unit.index)];
  const Shard& range = store_.shard(unit);
  const Tensor mine = store_.gradient(unit);
  const bool first = !reduced_[static_cast<size_t>(unit.index)];
  reduced_[static_cast<size_t>(unit.index)] = true;
  // Later contributions: the reduction itself adds them, or they are reduced into this rank's part of the full buffer
  // and added from there.
  const bool adds = !first && context_.groups.shard->reduce_scatter_accumulates(full);
  const Tensor target = first || adds ? mine : full.part(context_.groups.shard->rank() * range.count, {range.count});
  follow_compute(comm);
  if (context_.observer) context_.observer->begin(CommObserver::Kind::reduce_scatter, unit, full.bytes(), comm);
  context_.groups.shard->reduce_scatter(full, target, comm, adds);
  if (context_.observer) context_.observer->end(CommObserver::Kind::reduce_scatter, unit, full.bytes(), comm);
  if (!first && !adds) context_.ops->add(target, mine, comm);
  const Event done = pending_events_[next_event_++ % pending_events_.size()];
  device.record(done, comm);
  pending_.push_back({full, done, position_, acquired_bytes_});
  pending_bytes_ += full.bytes();
  full = {};
  retire(settings_.prefetch_bytes);
}

// Sums this rank's shard of the unit's gradient over the shard groups, after the last reduce-scatter of the unit.
void Sharded::reduce_over_groups(const Unit& unit) {
  const Stream comm = context_.device->comm_stream();
  const Tensor mine = store_.gradient(unit);
  if (context_.observer) context_.observer->begin(CommObserver::Kind::all_reduce, unit, mine.bytes(), comm);
  context_.groups.replicate->all_reduce(mine, comm);
  if (context_.observer) context_.observer->end(CommObserver::Kind::all_reduce, unit, mine.bytes(), comm);
  replicating_ = true;
}

// Gives buffers back until at most `keep` bytes are in flight. With keep > 0, the latest buffer stays,
// and so do buffers that fit under memory_limit_.
void Sharded::retire(int64_t keep) {
  while (!pending_.empty() && pending_bytes_ > keep && (keep == 0 || (pending_.size() > 1 && !room_for(0, position_))))
    retire_oldest();
}

void Sharded::retire_oldest() {
  const Pending& oldest = pending_.front();
  context_.device->wait(context_.device->compute_stream(), oldest.done);
  pending_bytes_ -= oldest.full.bytes();
  own_bytes_ -= oldest.full.bytes();
  context_.arena->give(oldest.full);
  pending_.pop_front();
}

void Sharded::finish_backward() {
  note_memory();
  retire(0);
  if (replicating_) {                      // the last all-reduce follows the last reduce-scatter
    context_.device->record(replicated_, context_.device->comm_stream());
    context_.device->wait(context_.device->compute_stream(), replicated_);
    replicating_ = false;
  }
  if (copies() && units_ != UnitsOfEvaluation::kept) {  // the pass has gathered, so the stamp stream has forked
    context_.device->record(observed_, context_.device->stamp_stream());
    context_.device->wait(context_.device->compute_stream(), observed_);
  }
  for (const Unit* unit : context_.units) {
    Gathered& entry = gathered_[static_cast<size_t>(unit->index)];
    if (entry.sections.empty()) continue;
    BLIPFT_CHECK(entry.promised == 0, "unit ", unit->name(), " is still in use at the end of the step");
    if (!entry.awaited) context_.device->wait(context_.device->compute_stream(), entry.arrived);
    drop(*unit);
  }
}

}  // namespace blipft
