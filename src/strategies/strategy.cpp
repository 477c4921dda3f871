// What all strategies share: the layout of shards in contiguous buffers, and the update.
#include "blipft/strategy.h"

#include <algorithm>

namespace blipft {

namespace {
constexpr int64_t kShardAlignment = 64;  // elements: 128 bytes in bf16, what NCCL and vector loads like
}

PrecisionTypes PrecisionTypes::of(Precision precision) {
  switch (precision) {
    case Precision::f32_true: return {DType::f32, DType::f32, DType::f32, false};
    case Precision::bf16_true: return {DType::bf16, DType::bf16, DType::bf16, false};
    case Precision::bf16_mixed: return {DType::bf16, DType::f32, DType::f32, true};
  }
  throw Error("unknown precision");
}

Strategy::Strategy(StrategyContext context, int64_t shards) : context_(std::move(context)), shard_count_(shards) {
  final_ = context_.device->create_event();
  all_updated_ = context_.device->create_event();
  shards_.resize(context_.units.size());
  int64_t squares = 0;
  for (bool trainable : {true, false}) {
    for (const Unit* unit : context_.units) {
      if (unit->trainable != trainable) continue;
      const int64_t grain = kShardAlignment * shard_count_;
      Shard& shard = shards_[static_cast<size_t>(unit->index)];
      shard.padded = (unit->numel() + grain - 1) / grain * grain;
      shard.count = shard.padded / shard_count_;
      shard.first = shard_count_ > 1 ? context_.comm->rank() * shard.count : 0;
      shard.offset = total_;
      shard.squares = squares;
      total_ += shard.count;
      if (trainable) squares += squares_count(shard.count);
    }
    if (trainable) trainable_ = total_;
  }
  Arena& arena = *context_.arena;
  const PrecisionTypes& types = context_.types;
  parameters_ = arena.persistent(Owner::parameters, "parameters", types.compute, {total_});
  if (trainable_ == 0) return;
  if (types.master) masters_ = arena.persistent(Owner::parameters, "master weights", DType::f32, {trainable_});
  gradients_ = arena.persistent(Owner::gradients, "gradients", types.gradient, {trainable_});
  for (const std::string& name : context_.optimizer->state_names())
    states_.push_back(arena.persistent(Owner::optimizer, name, types.state, {trainable_}));
  squares_ = arena.persistent(Owner::optimizer, "sums of squares of gradients", DType::f32, {squares});
}

void Strategy::bind() {
  const Arena& arena = *context_.arena;
  parameters_ = arena.resolve(parameters_);
  masters_ = arena.resolve(masters_);
  gradients_ = arena.resolve(gradients_);
  for (Tensor& state : states_) state = arena.resolve(state);
  squares_ = arena.resolve(squares_);
  const Stream stream = context_.device->compute_stream();
  // Everything, gaps and padding included: the update runs over them too and must find zeros.
  for (const Tensor& tensor : {parameters_, masters_, gradients_})
    if (tensor) context_.device->zero(tensor.data, tensor.bytes(), stream);
  for (const Tensor& state : states_) context_.device->zero(state.data, state.bytes(), stream);
}

void Strategy::begin_step(const Tensor& scalars, float max_norm) {
  scalars_ = scalars;
  max_norm_ = max_norm;
  updated_.assign(context_.units.size(), false);
}

void Strategy::gradient_final(const Unit& unit, Stream stream) {
  if (max_norm_ > 0 || !unit.trainable) return;
  Device& device = *context_.device;
  const Stream updates = device.update_stream();
  device.record(final_, stream);
  device.wait(updates, final_);
  const int64_t bytes = gradients(unit).bytes();
  if (context_.observer) context_.observer->begin(CommObserver::Kind::update, unit, bytes, updates);
  optimize(unit, updates);
  if (context_.observer) context_.observer->end(CommObserver::Kind::update, unit, bytes, updates);
}

void Strategy::optimize(const Unit& unit, Stream stream) {
  Optimizer::Operands mine{parameters(unit), masters(unit), gradients(unit), {}, {}};
  for (size_t i = 0; i < states_.size(); ++i) mine.state.push_back(state(unit, i));
  mine.squares = squares_.part(shard(unit).squares, {squares_count(shard(unit).count)});
  context_.optimizer->update(*context_.ops, mine, scalars_, stream);
  updated_[static_cast<size_t>(unit.index)] = true;
}

void Strategy::begin_micro_batch(int64_t index, int64_t count) {
  micro_batch_ = index;
  micro_batches_ = count;
}

Tensor Strategy::part(const Tensor& buffer, const Unit& unit) const {
  const Shard& range = shard(unit);
  return buffer ? buffer.part(range.offset, {range.count}) : Tensor{};
}
Tensor Strategy::parameters(const Unit& unit) const { return part(parameters_, unit); }
Tensor Strategy::masters(const Unit& unit) const { return unit.trainable ? part(masters_, unit) : Tensor{}; }
DType Strategy::weight_dtype(const Unit& unit) const {
  return context_.types.master && unit.trainable ? DType::f32 : context_.types.compute;
}
Tensor Strategy::gradients(const Unit& unit) const { return unit.trainable ? part(gradients_, unit) : Tensor{}; }
Tensor Strategy::state(const Unit& unit, size_t i) const {
  return unit.trainable ? part(states_.at(i), unit) : Tensor{};
}

void Strategy::gather_weights(const Unit& unit, const Tensor& full, Stream stream) {
  const Tensor mine = masters(unit) ? masters(unit) : parameters(unit);
  BLIPFT_CHECK(full.numel() == shard(unit).padded && full.dtype == mine.dtype, "gather_weights of ", unit.name(), ": ",
               full.shape.str());
  if (shard_count_ > 1)
    context_.comm->all_gather(mine, full, stream);
  else
    context_.device->copy(full.data, mine.data, mine.bytes(), stream);
}

void Strategy::update(const Tensor& norm_square) {
  const Stream stream = context_.device->compute_stream();
  if (trainable_ == 0) return;
  Ops& ops = *context_.ops;
  const bool clips = max_norm_ > 0;
  if (clips) {                             // the norm comes first: a pass of its own over the gradients
    ops.sum_squares(gradients_, norm_square, false, stream);
  } else {                                 // the updates have told their squares
    for (const Unit* unit : context_.units)
      BLIPFT_CHECK(!unit->trainable || updated_[static_cast<size_t>(unit->index)], "unit ", unit->name(),
                   " was not published in this step");
    context_.device->record(all_updated_, context_.device->update_stream());
    context_.device->wait(stream, all_updated_);
    ops.sum(squares_, norm_square, false, stream);
  }
  if (shard_count_ > 1) context_.comm->all_reduce(norm_square, stream);
  ops.clip_coefficient(norm_square, scalars_, max_norm_, stream);
  if (clips)
    context_.optimizer->update(ops, {parameters_.part(0, {trainable_}), masters_, gradients_, states_, {}}, scalars_,
                               stream);
}

}  // namespace blipft
