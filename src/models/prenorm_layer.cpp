// The pre-norm transformer layer, forward and backward. Legend in blocks.h.
#include <cmath>

#include "models/blocks.h"

namespace blipft {

Dropout PreNormLayer::dropout(const StepContext& context, const Call& call, uint32_t which) const {
  return {context.training ? shape.dropout : 0, dropout_site + which, context.seed, call.sample_keys, call.tokens,
          call.packing};
}

AttentionForward PreNormLayer::attention_call(const Call& call, const Tensor& qkv_rows, const Tensor& out,
                                              const Tensor& lse) const {
  const int64_t h = shape.hidden, t = call.tokens;
  return {.dtype = qkv_rows.dtype, .batch = call.batch, .heads = shape.heads, .head_size = h / shape.heads,
          .query_tokens = t, .kv_tokens = t, .q = Heads::in(qkv_rows, 0, t), .k = Heads::in(qkv_rows, h, t),
          .v = Heads::in(qkv_rows, 2 * h, t), .scale = 1.0f / std::sqrt(static_cast<float>(h / shape.heads)),
          .causal = shape.causal, .kv_lengths = call.kv_lengths, .packing = call.packing, .out = Heads::in(out, 0, t),
          .lse = lse};
}

// middle = x + drop(projection(attention(norm1(x)))), and norm2 of it.
PreNormLayer::Middle PreNormLayer::attention_forward(const StepContext& context, const Tensor& flat, const Call& call,
                                                     const Tensor& x, Saved& saved, bool save) const {
  const DType type = x.dtype;
  const int64_t rows = x.rows(), h = shape.hidden;
  Taken attention(context, "attention output", type, {rows, h});
  Taken lse(context, "attention log-sum-exp", DType::f32, {call.batch, shape.heads, call.tokens});
  Taken qkv_rows(context, "qkv", type, {rows, 3 * h});
  {
    NormResult normed = take_norm(context, norm1, flat, x);
    context.ops.linear_forward({.x = normed.y, .w = qkv.w(flat), .bias = qkv.b(flat), .y = qkv_rows}, context.stream);
    give(context, normed.y);
    if (save) saved.norm1 = normed; else give(context, normed);
  }
  context.ops.attention_forward(attention_call(call, qkv_rows, attention, lse), context.stream);
  if (save) saved.qkv = qkv_rows.keep(); else qkv_rows.give();

  Taken middle(context, "middle residual", type, {rows, h});
  NormResult normed;
  if (const Dropout projection_dropout = dropout(context, call, 0)) {
    Taken projected(context, "sublayer output", type, {rows, h});
    context.ops.linear_forward({.x = attention, .w = projection.w(flat), .bias = projection.b(flat), .y = projected},
                               context.stream);
    normed = {Taken(context, "norm output", type, {rows, h}).keep(),
              Taken(context, "norm statistics", DType::f32, {rows}).keep(),
              Taken(context, "norm statistics", DType::f32, {rows}).keep()};
    context.ops.norm_forward({.x = projected, .residual = x, .dropout = projection_dropout, .sum = middle,
                              .gamma = norm2.g(flat), .beta = norm2.b(flat), .eps = norm2.eps, .y = normed.y,
                              .mean = normed.mean, .rstd = normed.rstd},
                             context.stream);
  } else {
    context.ops.linear_forward({.x = attention, .w = projection.w(flat), .bias = projection.b(flat), .residual = x,
                                .y = middle},
                               context.stream);
    normed = take_norm(context, norm2, flat, middle);
  }
  if (save) saved.attention = attention.keep(), saved.lse = lse.keep();
  return {middle.keep(), normed};
}

Tensor PreNormLayer::forward(const StepContext& context, const Tensor& flat, const Call& call, Tensor x, Saved& saved,
                             bool save) const {
  Middle middle = attention_forward(context, flat, call, x, saved, save);
  if (save) saved.x = x; else give(context, x);
  Tensor y = mlp_forward(context, flat, call, middle.sum, middle.normed.y, saved, save);
  give(context, middle.normed.y);
  if (save) saved.norm2 = middle.normed; else give(context, middle.normed);
  if (save) saved.middle = middle.sum; else give(context, middle.sum);
  return y;
}

// The layer's output is not among what backward needs: fc2 is left out.
void PreNormLayer::recompute(const StepContext& context, const Tensor& flat, const Call& call, Saved& saved) const {
  Middle middle = attention_forward(context, flat, call, saved.x, saved, true);
  Taken inner(context, "mlp inner", saved.x.dtype, {saved.x.rows(), shape.inner});
  context.ops.linear_forward({.x = middle.normed.y, .w = fc1.w(flat), .bias = fc1.b(flat),
                              .activation = shape.activation == Activation::gelu ? Activation::none : shape.activation,
                              .y = inner},
                             context.stream);
  give(context, middle.normed.y);
  saved.norm2 = middle.normed;
  saved.middle = middle.sum;
  saved.inner = inner.keep();
}

void PreNormLayer::give_all_but_input(const StepContext& context, Saved& saved) const {
  for (Tensor* tensor : {&saved.qkv, &saved.attention, &saved.lse, &saved.middle, &saved.inner}) give(context, *tensor);
  for (NormResult* norm : {&saved.norm1, &saved.norm2}) give(context, *norm);
}

// y = middle + drop(fc2(act(fc1(normed))))
Tensor PreNormLayer::mlp_forward(const StepContext& context, const Tensor& flat, const Call& call, const Tensor& middle,
                                 const Tensor& normed, Saved& saved, bool save) const {
  const DType type = middle.dtype;
  const int64_t rows = middle.rows(), h = shape.hidden;
  Taken activated(context, "mlp inner", type, {rows, shape.inner});
  if (shape.activation == Activation::gelu) {
    Taken before(context, "mlp inner", type, {rows, shape.inner});
    context.ops.linear_forward({.x = normed, .w = fc1.w(flat), .bias = fc1.b(flat), .activation = shape.activation,
                                .pre_activation = before, .y = activated},
                               context.stream);
    if (save) saved.inner = before.keep();
  } else {
    context.ops.linear_forward({.x = normed, .w = fc1.w(flat), .bias = fc1.b(flat), .activation = shape.activation,
                                .y = activated},
                               context.stream);
  }
  Taken y(context, "residual stream", type, {rows, h});
  if (const Dropout output_dropout = dropout(context, call, 1)) {
    Taken out(context, "sublayer output", type, {rows, h});
    context.ops.linear_forward({.x = activated, .w = fc2.w(flat), .bias = fc2.b(flat), .y = out}, context.stream);
    context.ops.dropout_add({.x = out, .residual = middle, .dropout = output_dropout, .y = y},
                            context.stream);
  } else {
    context.ops.linear_forward({.x = activated, .w = fc2.w(flat), .bias = fc2.b(flat), .residual = middle, .y = y},
                               context.stream);
  }
  if (save && shape.activation != Activation::gelu) saved.inner = activated.keep();
  return y.keep();
}

// Gradient of `middle` out of dy; with dropout also, in `dropped`, of the projection's output.
Tensor PreNormLayer::mlp_backward(const StepContext& context, const Tensor& flat, const UnitGradient* gradient,
                                  WeightGradients& weights, const Call& call, const ResidualGradient& incoming,
                                  Saved& saved, Tensor* dropped) const {
  const Tensor dy = incoming.dy;
  const DType type = dy.dtype;
  const int64_t rows = dy.rows(), h = shape.hidden;
  const bool gelu = shape.activation == Activation::gelu;
  Tensor dout = incoming.dropped ? incoming.dropped : dy;  // gradient of fc2's output
  if (shape.dropout > 0 && !incoming.dropped) {
    dout = context.arena.take(Owner::activations, "gradients", type, {rows, h});
    context.ops.dropout_add({.x = dy, .dropout = dropout(context, call, 1), .y = dout}, context.stream);
  }
  Taken dinner(context, "gradients of mlp inner", type, {rows, shape.inner});
  Tensor activated =
      gelu && gradient ? context.arena.take(Owner::activations, "mlp inner", type, {rows, shape.inner}) : Tensor{};
  context.ops.linear_backward_input({.dy = dout, .w = fc2.w(flat), .activation = shape.activation, .saved = saved.inner,
                                     .activated = activated, .dbias = gradient ? fc1.b(gradient->flat) : Tensor{},
                                     .accumulate_dbias = gradient && gradient->accumulate, .dx = dinner},
                                    context.stream);
  weights.add(fc2, dout, gelu ? activated : saved.inner, !incoming.column_sums);
  if (incoming.column_sums) weights.add_bias(fc2, incoming.column_sums);
  weights.keep(incoming.column_sums);
  weights.keep(activated);
  if (gelu) give(context, saved.inner); else weights.keep(saved.inner);
  saved.inner = {};
  if (dout.data != dy.data) weights.keep(dout);

  Taken dnormed(context, "gradients", type, {rows, h});
  context.ops.linear_backward_input({.dy = dinner, .w = fc1.w(flat), .dx = dnormed}, context.stream);
  if (shape.dropout > 0) *dropped = context.arena.take(Owner::activations, "gradients", type, {rows, h});
  // The norm's output, which fc1 read, comes out of the norm's backward: that has the norm's input at hand.
  Tensor normed = gradient ? context.arena.take(Owner::activations, "norm output", type, {rows, h}) : Tensor{};
  context.ops.norm_backward({.dy = dnormed, .x = saved.middle, .mean = saved.norm2.mean, .rstd = saved.norm2.rstd,
                             .gamma = norm2.g(flat), .beta = gradient ? norm2.b(flat) : Tensor{}, .y = normed,
                             .add = dy,
                             .dgamma = gradient ? norm2.g(gradient->flat) : Tensor{},
                             .dbeta = gradient ? norm2.b(gradient->flat) : Tensor{},
                             .accumulate = gradient && gradient->accumulate, .dropout = dropout(context, call, 0),
                             .dropped = shape.dropout > 0 ? *dropped : Tensor{},
                             .dbias = gradient ? projection.b(gradient->flat) : Tensor{},
                             .accumulate_dbias = gradient && gradient->accumulate, .dx = dnormed},
                            context.stream);
  weights.add(fc1, dinner, normed, false);
  weights.keep(normed);
  weights.keep(dinner.keep());
  give(context, saved.norm2);
  give(context, saved.middle);
  weights.keep(dy);                        // fc2's weight gradient may still read it
  return dnormed.keep();
}

ResidualGradient PreNormLayer::backward(const StepContext& context, const Tensor& flat, const UnitGradient* gradient,
                                        const Call& call, ResidualGradient dy, Saved& saved,
                                        const PreNormLayer* below) const {
  const DType type = dy.dy.dtype;
  const int64_t rows = dy.dy.rows(), h = shape.hidden;
  WeightGradients weights(context, gradient);
  Tensor dropped;
  Tensor dmiddle = mlp_backward(context, flat, gradient, weights, call, dy, saved, &dropped);
  const Tensor dprojected = dropped ? dropped : dmiddle;
  weights.add(projection, dprojected, saved.attention, false);
  weights.keep(dropped);
  Taken dqkv(context, "gradients of qkv", type, {rows, 3 * h});
  {
    Taken dattention(context, "gradients", type, {rows, h});
    context.ops.linear_backward_input({.dy = dprojected, .w = projection.w(flat), .dx = dattention}, context.stream);
    Taken delta(context, "attention row sums", DType::f32, {call.batch, shape.heads, call.tokens});
    const int64_t t = call.tokens;
    context.ops.attention_backward({.forward = attention_call(call, saved.qkv, saved.attention, saved.lse),
                                    .dout = Heads::in(dattention, 0, t), .dq = Heads::in(dqkv, 0, t),
                                    .dk = Heads::in(dqkv, h, t), .dv = Heads::in(dqkv, 2 * h, t), .delta = delta,
                                    .dbias = gradient ? qkv.b(gradient->flat) : Tensor{},
                                    .accumulate_dbias = gradient && gradient->accumulate},
                                   context.stream);
  }
  give(context, saved.qkv);
  give(context, saved.lse);
  weights.keep(saved.attention);
  saved.attention = {};
  Taken dnormed(context, "gradients", type, {rows, h});
  context.ops.linear_backward_input({.dy = dqkv, .w = qkv.w(flat), .dx = dnormed}, context.stream);
  Tensor normed = gradient ? context.arena.take(Owner::activations, "norm output", type, {rows, h}) : Tensor{};
  ResidualGradient dx;
  if (below && below->shape.dropout > 0)
    dx.dropped = context.arena.take(Owner::activations, "gradients", type, {rows, h});
  if (below && below->unit->trainable && below->fc2.bias >= 0)
    dx.column_sums = context.arena.take(Owner::activations, "gradients", DType::f32, {h});
  context.ops.norm_backward({.dy = dnormed, .x = saved.x, .mean = saved.norm1.mean, .rstd = saved.norm1.rstd,
                             .gamma = norm1.g(flat), .beta = gradient ? norm1.b(flat) : Tensor{}, .y = normed,
                             .add = dmiddle,
                             .dgamma = gradient ? norm1.g(gradient->flat) : Tensor{},
                             .dbeta = gradient ? norm1.b(gradient->flat) : Tensor{},
                             .accumulate = gradient && gradient->accumulate,
                             .dropout = below ? below->dropout(context, call, 1) : Dropout{}, .dropped = dx.dropped,
                             .dbias = dx.column_sums, .dx = dnormed},
                            context.stream);
  weights.add(qkv, dqkv, normed, false);
  weights.keep(normed);
  weights.keep(dqkv.keep());
  give(context, saved.norm1);
  give(context, saved.x);
  weights.keep(dmiddle);
  weights.join();
  dx.dy = dnormed.keep();
  return dx;
}

}  // namespace blipft
