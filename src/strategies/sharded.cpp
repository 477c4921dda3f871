// fsdp: gathers ahead of use along the known order, reduce-scatters behind it, both on the communication stream.
//
// Memory is the arena's, in program order; the streams are tied to that order by events. A gather or reduce-scatter waits
// for all compute enqueued before it, because its buffer may lie where that compute still works; compute waits for a
// gather before the unit's first use, and for a reduce-scatter before its buffer is given back.
#include "strategies/sharded.h"

#include <algorithm>

namespace blipft {

namespace {
constexpr size_t kReducesInFlight = 2;
}

Sharded::Sharded(const StrategyContext& context, ShardedSettings settings)
    : Strategy(context, context.comm->size()), settings_(std::move(settings)), gathered_(context.units.size()),
      full_gradients_(context.units.size()), filled_since_(context.units.size()) {
  for (Gathered& unit : gathered_) unit.arrived = context_.device->create_event();
  for (size_t i = 0; i <= kReducesInFlight; ++i) pending_events_.push_back(context_.device->create_event());
  compute_reached_ = context_.device->create_event();
}

void Sharded::learn_from(const Strategy& dry_run) {
  order_ = dynamic_cast<const Sharded&>(dry_run).order_;
  order_known_ = true;
}

void Sharded::begin_step() {
  if (!order_known_ && !order_.empty()) order_known_ = true;
  position_ = issued_ = 0;
  ahead_bytes_ = 0;
}

// Enqueues the all-gather of a unit that is not there.
void Sharded::gather(const Unit& unit) {
  Device& device = *context_.device;
  Gathered& entry = gathered_[static_cast<size_t>(unit.index)];
  entry.full = context_.arena->take(Owner::communication, "gathered units", context_.types.compute, {shard(unit).padded});
  entry.awaited = false;
  const Stream comm = device.comm_stream();
  device.record(compute_reached_, device.compute_stream());
  device.wait(comm, compute_reached_);
  if (context_.observer) context_.observer->begin(CommObserver::Kind::gather, unit, entry.full.bytes(), comm);
  context_.comm->all_gather(parameters(unit), entry.full, comm);
  if (context_.observer) context_.observer->end(CommObserver::Kind::gather, unit, entry.full.bytes(), comm);
  device.record(entry.arrived, comm);
}

// Promises gathers to the acquires that come next, as far as prefetch_bytes allow.
void Sharded::prefetch() {
  while (order_known_ && issued_ < order_.size()) {
    const Unit& unit = *context_.units[static_cast<size_t>(order_[issued_])];
    Gathered& entry = gathered_[static_cast<size_t>(unit.index)];
    if (!entry.full) {
      const int64_t bytes = shard(unit).padded * dtype_size(context_.types.compute);
      if (ahead_bytes_ > 0 && ahead_bytes_ + bytes > settings_.prefetch_bytes) return;
      gather(unit);
      ahead_bytes_ += bytes;
    }
    ++entry.promised;
    ++issued_;
  }
}

Tensor Sharded::acquire(const Unit& unit) {
  Gathered& entry = gathered_[static_cast<size_t>(unit.index)];
  if (!order_known_) {
    order_.push_back(unit.index);
    if (!entry.full) gather(unit);
    ++entry.promised;
  } else {
    BLIPFT_CHECK(position_ < order_.size() && order_[position_] == unit.index, "unit ", unit.name(),
                 " is acquired out of the known order at place ", position_);
    if (issued_ == position_) {            // nothing was gathered ahead: this unit first
      if (!entry.full) {
        gather(unit);
        ahead_bytes_ += entry.full.bytes();
      }
      ++entry.promised;
      ++issued_;
    }
    ++position_;
  }
  if (!entry.awaited) {
    context_.device->wait(context_.device->compute_stream(), entry.arrived);
    entry.awaited = true;
    if (order_known_) ahead_bytes_ -= entry.full.bytes();
  }
  const Tensor full = entry.full;
  prefetch();
  return full;
}

void Sharded::release(const Unit& unit) {
  Gathered& entry = gathered_[static_cast<size_t>(unit.index)];
  BLIPFT_CHECK(entry.promised > 0, "unit ", unit.name(), " is released without being acquired");
  --entry.promised;
  if (entry.promised == 0 && !settings_.hold) drop(unit);
}

void Sharded::drop(const Unit& unit) {
  Gathered& entry = gathered_[static_cast<size_t>(unit.index)];
  context_.arena->give(entry.full);
  entry.full = {};
}

UnitGradient Sharded::gradient(const Unit& unit) {
  const size_t i = static_cast<size_t>(unit.index);
  Tensor& full = full_gradients_[i];
  if (!full) {
    const PrecisionTypes& types = context_.types;
    full = context_.arena->take(Owner::communication, "gradients of units in flight", types.gradient, {shard(unit).padded});
    for (const auto& [first, end] : unit.gaps(shard(unit).padded))
      context_.device->zero(full.part(first, {end - first}).data, (end - first) * dtype_size(types.gradient),
                            context_.device->compute_stream());
    filled_since_[i] = micro_batch_;
  }
  return {full, filled_since_[i] != micro_batch_};
}

void Sharded::publish(const Unit& unit) {
  if (settings_.hold && !last_micro_batch()) return;
  reduce(unit);
}

// Reduce-scatters the unit's full gradient into this rank's shard and hands the buffer over to pending_.
void Sharded::reduce(const Unit& unit) {
  Device& device = *context_.device;
  const Stream comm = device.comm_stream();
  Tensor& full = full_gradients_[static_cast<size_t>(unit.index)];
  const Shard& range = shard(unit);
  const Tensor mine = gradients(unit);
  const bool first = micro_batch_ == 0 || settings_.hold;
  // Later micro-batches reduce into this rank's own place of the full buffer and add from there.
  const Tensor target = first ? mine : full.part(context_.comm->rank() * range.count, {range.count});
  device.record(compute_reached_, device.compute_stream());
  device.wait(comm, compute_reached_);
  if (context_.observer) context_.observer->begin(CommObserver::Kind::reduce_scatter, unit, full.bytes(), comm);
  context_.comm->reduce_scatter(full, target, comm);
  if (context_.observer) context_.observer->end(CommObserver::Kind::reduce_scatter, unit, full.bytes(), comm);
  if (!first) context_.ops->add(target, mine, comm);
  const Event done = pending_events_[next_event_++ % pending_events_.size()];
  device.record(done, comm);
  pending_.push_back({full, done});
  full = {};
  retire(kReducesInFlight);
}

void Sharded::retire(size_t keep) {
  while (pending_.size() > keep) {
    context_.device->wait(context_.device->compute_stream(), pending_.front().done);
    context_.arena->give(pending_.front().full);
    pending_.pop_front();
  }
}

void Sharded::finish_backward() {
  retire(0);
  for (const Unit* unit : context_.units) {
    Gathered& entry = gathered_[static_cast<size_t>(unit->index)];
    if (!entry.full) continue;
    BLIPFT_CHECK(entry.promised == 0, "unit ", unit->name(), " is still in use at the end of the step");
    if (!entry.awaited) context_.device->wait(context_.device->compute_stream(), entry.arrived);
    drop(*unit);
  }
}

}  // namespace blipft
