// Strategies single and ddp. ddp all-reduces each unit's flat gradient buffer: no bucket copies, no extra memory.
#include "strategies/replicated.h"

#include <set>

namespace blipft {

Replicated::Replicated(const StrategyContext& context)
    : Strategy(context), decoded_(context.units.size()), used_(context.units.size()) {
  ready_ = context_.device->create_event();
  done_ = context_.device->create_event();
}

std::vector<Stored> Replicated::stored(const Unit& unit) const {
  std::vector<Stored> sections;
  for (const ParameterStore::Section& section : store_.sections(unit)) sections.push_back(section.mine);
  return sections;
}

std::optional<Quantized> Replicated::quantized(const Unit& unit, int64_t first, int64_t count) const {
  return store_.quantized(unit, stored(unit), first, count);
}

Fp8Matrix Replicated::fp8_values(const Unit& unit, int64_t first, int64_t count) const {
  return store_.fp8_values(unit, stored(unit), first, count);
}

Tensor Replicated::acquire(const Unit& unit, AcceptedEncodings left) {
  if (store_.flat(unit)) return store_.weights(unit);
  Decoded& decoded = decoded_[static_cast<size_t>(unit.index)];
  if (decoded.uses++ > 0) {
    BLIPFT_CHECK(decoded.left == left, "unit ", unit.name(), " is acquired with its codes and without");
    return decoded.flat;
  }
  decoded.left = left;
  decoded.flat =
      context_.arena->take(Owner::parameters, "decoded units", store_.types().compute, {store_.shard(unit).padded});
  store_.decode(unit, stored(unit), decoded.flat, context_.device->compute_stream(), left);
  return decoded.flat;
}

UnitWeights Replicated::acquire_quantized(const Unit& unit, AcceptedEncodings accepted) {
  const Tensor flat = acquire(unit, accepted);
  return {flat, store_.as_stored(unit, stored(unit), accepted)};
}

void Replicated::release(const Unit& unit) {
  if (store_.flat(unit)) return;
  Decoded& decoded = decoded_[static_cast<size_t>(unit.index)];
  if (--decoded.uses > 0) return;
  context_.arena->give(decoded.flat);
  decoded.flat = {};
}

void Replicated::begin_micro_batch(int64_t index, int64_t count) {
  Strategy::begin_micro_batch(index, count);
  used_.assign(used_.size(), false);
}

UnitGradient Replicated::gradient(const Unit& unit) {
  const size_t i = static_cast<size_t>(unit.index);
  const bool accumulate = micro_batch_ > 0 || used_[i];
  used_[i] = true;
  return {store_.gradient(unit), accumulate};
}

void Replicated::publish(const Unit& unit) {
  if (!last_micro_batch()) return;
  Device& device = *context_.device;
  if (context_.groups.all->size() == 1) return gradient_final(unit, device.compute_stream());
  const Stream comm = device.comm_stream();
  device.record(ready_, device.compute_stream());
  device.wait(comm, ready_);
  const Tensor gradient = store_.gradient(unit);
  if (context_.observer) context_.observer->begin(CommObserver::Kind::all_reduce, unit, gradient.bytes(), comm);
  context_.groups.all->all_reduce(gradient, comm);
  if (context_.observer) context_.observer->end(CommObserver::Kind::all_reduce, unit, gradient.bytes(), comm);
  gradient_final(unit, comm);
  reducing_ = true;
}

void Replicated::finish_backward() {
  if (!reducing_) return;
  reducing_ = false;
  Device& device = *context_.device;
  device.record(done_, device.comm_stream());
  device.wait(device.compute_stream(), done_);
}

void Replicated::warm_up(const Tensor&, const Tensor& summed) {
  std::set<int64_t> sizes;
  for (const Unit* unit : context_.units)
    if (unit->trainable && sizes.insert(store_.shard(*unit).count).second)
      context_.groups.all->all_reduce(zero_gradient(*unit, summed), context_.device->comm_stream());
}

}  // namespace blipft
