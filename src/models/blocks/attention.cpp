// Attention, forward and backward; see attention.h.
#include "models/blocks/attention.h"

#include <algorithm>
#include <cmath>

namespace blipft {

AttentionForward Attention::arguments(const StepContext& context, const LayerCall& call, const SavedBlock& saved) const {
  const int64_t q = shape_.q_width(), kv = shape_.kv_width(), t = call.tokens;
  const int64_t keys = cross_ ? call.memory_tokens : t;
  AttentionForward args{.dtype = saved.qkv.dtype, .batch = call.batch, .heads = shape_.heads,
                        .head_size = shape_.head_size, .query_tokens = t, .kv_tokens = keys,
                        .kv_heads = shape_.kv_heads, .q = Heads::in(saved.qkv, 0, t),
                        .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_size)), .causal = shape_.causal,
                        .packing = call.packing, .out = Heads::in(saved.attention, 0, t), .lse = saved.lse};
  args.k = cross_ ? Heads::in(saved.kv, 0, keys) : Heads::in(saved.qkv, q, t);
  args.v = cross_ ? Heads::in(saved.kv, kv, keys) : Heads::in(saved.qkv, q + kv, t);
  if (!cross_) args.kv_lengths = call.kv_lengths;
  if (shape_.dropout) args.dropout = shape_.dropout.of(context, call);
  return args;
}

// q and k lie side by side, as heads of one size: one pass over both.
void Attention::rotate(const StepContext& context, const LayerCall& call, const Tensor& qkv, bool inverse) const {
  Rotary args{.x = MatrixView(qkv).columns(0, shape_.q_width() + shape_.kv_width()), .head_size = shape_.head_size,
              .positions = call.positions, .inverse = inverse};
  std::copy(shape_.rotary->begin(), shape_.rotary->end(), args.frequencies);
  context.ops.rotary(args, context.stream);
}

// attention(q, k, v): all of `saved`.
void Attention::recompute(const UnitPass& pass, const LayerCall& call, Input input, SavedBlock& saved) const {
  const StepContext& context = pass.context;
  const DType type = input.x.dtype;
  const int64_t rows = input.x.rows();
  saved.attention = take(context, "attention output", type, {rows, shape_.q_width()});
  saved.lse = take(context, "attention log-sum-exp", DType::f32, {call.batch, shape_.heads, call.tokens});
  saved.qkv = take(context, "qkv", type, {rows, from_rows_.out});
  from_rows_.forward(pass, {.x = input.x, .y = saved.qkv});
  if (input.owned) give(context, input.x);
  if (cross_) {
    saved.kv = take(context, "qkv", type, {call.memory.rows(), key_value_.out});
    key_value_.forward(pass, {.x = call.memory, .y = saved.kv});
  }
  if (shape_.rotary) rotate(context, call, saved.qkv, false);
  context.ops.attention_forward(arguments(context, call, saved), context.stream);
}

Tensor Attention::forward(const UnitPass& pass, const LayerCall& call, Input input, const Output& output,
                          SavedBlock& saved, bool save) const {
  const StepContext& context = pass.context;
  const DType type = input.x.dtype;
  if (call.cache && call.decoding->lengths && !cross_) {
    saved.attention = attend_to_cache(pass, call, input);
  } else {
    recompute(pass, call, input, saved);
    if (call.cache && !cross_) write_cache(context, call, saved.qkv);
  }
  if (!save)
    for (Tensor* tensor : {&saved.qkv, &saved.kv, &saved.lse}) give(context, *tensor);
  const Tensor y = take(context, output.name, type, {saved.attention.rows(), output_.out});
  output_.forward(pass, {.x = saved.attention, .residual = output.residual, .y = y});
  if (!save) give(context, saved.attention);
  return y;
}

// Keys, as queries meet them, and values.
void Attention::write_cache(const StepContext& context, const LayerCall& call, const Tensor& qkv) const {
  const MatrixView all(qkv);
  const int64_t q = shape_.q_width(), kv = shape_.kv_width();
  context.ops.cache_write({.k = all.columns(q, kv), .v = all.columns(q + kv, kv), .slots = call.decoding->slots,
                           .places = call.decoding->places, .cache = *call.cache},
                          context.stream);
}

// One row of each slot, which sees what the cache holds of its text, itself too: [S, N D], the caller's.
Tensor Attention::attend_to_cache(const UnitPass& pass, const LayerCall& call, Input input) const {
  const StepContext& context = pass.context;
  const int64_t rows = input.x.rows();
  ScopedTensor qkv(context, "qkv", input.x.dtype, {rows, from_rows_.out});
  from_rows_.forward(pass, {.x = input.x, .y = qkv.get()});
  if (input.owned) give(context, input.x);
  if (shape_.rotary) rotate(context, call, qkv, false);
  write_cache(context, call, qkv);
  const Tensor out = take(context, "attention output", input.x.dtype, {rows, shape_.q_width()});
  context.ops.attention_decode(
      {.q = MatrixView(qkv.get()).columns(0, shape_.q_width()), .heads = shape_.heads, .kv_heads = shape_.kv_heads,
       .head_size = shape_.head_size, .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_size)),
       .lengths = call.decoding->lengths, .sources = call.decoding->sources, .cache = *call.cache, .out = out},
      context.stream);
  return out;
}

Block::InputGradient Attention::backward(UnitBackward& pass, const LayerCall& call, const OutputGradient& incoming,
                                         SavedBlock& saved) const {
  const StepContext& context = pass.context;
  const Tensor& dy = incoming.dy;
  const DType type = dy.dtype;
  const int64_t rows = dy.rows(), q = shape_.q_width(), kv = shape_.kv_width(), t = call.tokens;
  output_.weight_gradient(pass, dy, saved.attention, incoming.bias);
  const Tensor dqkv = take(context, "gradients of qkv", type, {rows, from_rows_.out});
  const Tensor dkv = cross_ ? take(context, "gradients of qkv", type, {call.memory.rows(), key_value_.out}) : Tensor{};
  const int64_t keys = cross_ ? call.memory_tokens : t;
  // Attention sums the columns of q, k and v where they are one matrix, and as its products left them: biases of q and k
  // are added before the rotation.
  const BiasGradient bias = cross_ || shape_.rotary ? BiasGradient{} : from_rows_.bias_gradient(pass);
  {
    ScopedTensor dattention(context, "gradients", type, {rows, q});
    output_.input_gradient(pass, {.dy = dy, .dx = dattention});
    ScopedTensor delta(context, "attention row sums", DType::f32, {call.batch, shape_.heads, t});
    context.ops.attention_backward({.forward = arguments(context, call, saved), .dout = Heads::in(dattention, 0, t),
                                    .dq = Heads::in(dqkv, 0, t),
                                    .dk = cross_ ? Heads::in(dkv, 0, keys) : Heads::in(dqkv, q, t),
                                    .dv = cross_ ? Heads::in(dkv, kv, keys) : Heads::in(dqkv, q + kv, t),
                                    .delta = delta, .dbias = bias.sums, .accumulate_dbias = bias.accumulate},
                                   context.stream);
  }
  if (shape_.rotary) rotate(context, call, dqkv, true);
  for (Tensor* tensor : {&saved.qkv, &saved.kv, &saved.lse}) give(context, *tensor);
  leave(pass, output_, std::exchange(saved.attention, {}));
  InputGradient result = input_gradient(pass, incoming, dqkv, bias);
  if (cross_) memory_backward(pass, call, dkv);
  return result;
}

// Takes dkv [B * P, 2 K D] over.
void Attention::memory_backward(UnitBackward& pass, const LayerCall& call, Tensor dkv) const {
  key_value_.weight_gradient(pass, dkv, call.memory);
  if (MemoryGradient& memory = *call.memory_gradient; memory.sum) {
    key_value_.input_gradient(pass, {.dy = dkv, .add = memory.started ? memory.sum : Tensor{}, .dx = memory.sum});
    memory.started = true;
  }
  leave(pass, key_value_, dkv);
}

// Of causal attention half of q k^T and of the product with v.
Block::Flops Attention::forward_flops(int64_t batch, double tokens, double memory_tokens) const {
  const double rows = static_cast<double>(batch) * tokens, keys = cross_ ? memory_tokens : tokens;
  Flops flops;
  flops.products = 2 * rows * static_cast<double>(from_rows_.in * from_rows_.out + output_.in * output_.out);
  if (cross_)
    flops.memory_products =
        2 * static_cast<double>(batch) * memory_tokens * static_cast<double>(key_value_.in * key_value_.out);
  flops.attention = 4 * rows * keys * static_cast<double>(shape_.q_width()) * (shape_.causal ? 0.5 : 1);
  return flops;
}

}  // namespace blipft
