// The common part of all strategies: times of updates, the gradient norm, gathers of whole units.
#include "blipft/strategy.h"

namespace blipft {

Strategy::Strategy(StrategyContext context) : context_(std::move(context)), store_(*context_.store) {
  final_ = context_.device->create_event();
  all_updated_ = context_.device->create_event();
  uploaded_ = context_.device->create_event();
}

void Strategy::begin_step(const Tensor& scalars, float max_norm) {
  BLIPFT_CHECK(max_norm == 0 || !store_.transient_gradients(), "clipping needs all gradients at once");
  scalars_ = scalars;
  max_norm_ = max_norm;
  updated_.assign(context_.units.size(), false);
}

void Strategy::begin_micro_batch(int64_t index, int64_t count) {
  BLIPFT_CHECK(count == 1 || !store_.transient_gradients(), "accumulation keeps gradients between micro-batches");
  micro_batch_ = index;
  micro_batches_ = count;
}

void Strategy::begin_evaluation(size_t kind, UnitsOfEvaluation) {
  BLIPFT_CHECK(kind < kEvaluations, "no evaluations of kind ", kind);
  micro_batch_ = 0;
  micro_batches_ = 1;
}

void Strategy::gradient_final(const Unit& unit, Stream stream) {
  if (max_norm_ > 0 || !unit.trainable) return;
  Device& device = *context_.device;
  const Stream updates = device.update_stream();
  device.record(final_, stream);
  device.wait(updates, final_);
  const int64_t bytes = store_.gradient(unit).bytes();
  if (context_.observer) context_.observer->begin(CommObserver::Kind::update, unit, bytes, updates);
  optimize(unit, updates);
  if (context_.observer) context_.observer->end(CommObserver::Kind::update, unit, bytes, updates);
}

void Strategy::optimize(const Unit& unit, Stream stream) {
  store_.update(unit, scalars_, stream);
  updated_[static_cast<size_t>(unit.index)] = true;
}

// With hybrid groups, only ranks of the first shard group contribute; the others add zeros. If each shard group summed
// separately, the order could differ and their weights would drift apart; one collective gives all ranks the same bits.
void Strategy::sum_over_shards(const Tensor& norm_square, Stream stream) {
  const Groups& groups = context_.groups;
  if (groups.replicate->rank() > 0) context_.device->zero(norm_square.data, norm_square.bytes(), stream);
  if (store_.shards() > 1 || groups.hybrid()) groups.all->all_reduce(norm_square, stream);
}

void Strategy::update(const Tensor& norm_square) {
  const Stream stream = context_.device->compute_stream();
  if (!store_.trains()) return;
  Ops& ops = *context_.ops;
  const bool clips = max_norm_ > 0;
  if (clips) {                             // the norm is needed first: a separate pass over the gradients
    ops.sum_squares(store_.held_gradients(), norm_square, false, stream);
  } else {                                 // the updates have written the squares of their gradients
    for (const Unit* unit : context_.units)
      BLIPFT_CHECK(!unit->trainable || updated_[static_cast<size_t>(unit->index)], "unit ", unit->name(),
                   " was not published in this step");
    context_.device->record(all_updated_, context_.device->update_stream());
    context_.device->wait(stream, all_updated_);
    store_.give_gradients();
    ops.sum(store_.squares(), norm_square, false, stream);
  }
  sum_over_shards(norm_square, stream);
  ops.clip_coefficient(norm_square, scalars_, max_norm_, stream);
  if (!clips) return;
  for (const Unit* unit : context_.units)
    if (unit->trainable) optimize(*unit, stream);
}

int64_t Strategy::gather_scratch_bytes(const Unit& unit) const {
  return store_.flat(unit) || store_.shards() == 1 ? 0 : store_.gathered_bytes(unit);
}

void Strategy::gather_shards(const Tensor& mine, MemorySpace space, const Tensor& whole, Stream link, Stream stream) {
  Comm& shard = *context_.groups.shard;
  if (space == MemorySpace::device) return shard.all_gather(mine, whole, stream);
  Device& device = *context_.device;
  const Tensor own = whole.part(context_.groups.shard->rank() * mine.numel(), {mine.numel()});
  device.copy(own.data, mine.data, mine.bytes(), link);
  if (link.handle != stream.handle) {
    device.record(uploaded_, link);
    device.wait(stream, uploaded_);
  }
  if (shard.size() > 1) shard.all_gather(own, whole, stream);
}

Tensor Strategy::zero_gradient(const Unit& unit, const Tensor& zeros) {
  if (!store_.transient_gradients()) return store_.gradient(unit);
  const Tensor gradient{zeros.data, store_.types().gradient, {store_.shard(unit).count}};
  BLIPFT_CHECK(gradient.bytes() <= zeros.numel(), "unit ", unit.name(), " takes more than the ", zeros.numel(),
               " bytes of scratch memory");
  return gradient;
}

void Strategy::gather_weights(const Unit& unit, const Tensor& full, const Tensor& scratch, Stream stream) {
  const bool masters = static_cast<bool>(store_.masters(unit));
  const Tensor mine = masters ? store_.masters(unit) : store_.flat(unit) ? store_.weights(unit) : Tensor{};
  const MemorySpace space = masters ? store_.master_space() : store_.weights_space();
  BLIPFT_CHECK(full.numel() == store_.shard(unit).padded && full.dtype == store_.weight_dtype(unit),
               "gather_weights of ", unit.name(), ": ", full.shape.str());
  if (mine && store_.shards() > 1) return gather_shards(mine, space, full, stream, stream);
  if (mine) return context_.device->copy(full.data, mine.data, mine.bytes(), stream);
  std::vector<Stored> gathered;
  int64_t at = 0;
  for (const ParameterStore::Section& section : store_.sections(unit)) {
    Stored whole = section.mine;
    if (store_.shards() > 1) {
      whole.elements = section.shard.padded;
      for (Tensor& plane : whole.planes) {
        const Tensor shard = plane;
        plane = {static_cast<char*>(scratch.data) + at, shard.dtype, {shard.numel() * store_.shards()}};
        at += plane.bytes();
        gather_shards(shard, space, plane, stream, stream);
      }
    }
    gathered.push_back(std::move(whole));
  }
  BLIPFT_CHECK(at <= gather_scratch_bytes(unit) && at <= (scratch ? scratch.bytes() : 0),
               "gather_weights of ", unit.name(), " needs ", at, " bytes of scratch memory");
  store_.decode(unit, gathered, full, stream);
}

}  // namespace blipft
