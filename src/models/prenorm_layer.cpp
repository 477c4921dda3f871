// The pre-norm transformer layer, forward and backward; see prenorm_layer.h.
#include "models/prenorm_layer.h"

#include <cmath>

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
PreNormLayer::Middle PreNormLayer::attention_forward(const UnitPass& pass, const Call& call, const Tensor& x,
                                                     Saved& saved, bool save) const {
  const StepContext& context = pass.context;
  const DType type = x.dtype;
  const int64_t rows = x.rows(), h = shape.hidden;
  Taken attention(context, "attention output", type, {rows, h});
  Taken lse(context, "attention log-sum-exp", DType::f32, {call.batch, shape.heads, call.tokens});
  Taken qkv_rows(context, "qkv", type, {rows, 3 * h});
  {
    NormResult normed = take_norm(context, norm1, pass.flat, x);
    qkv.forward(pass, {.x = normed.y, .y = qkv_rows});
    give(context, normed.y);
    if (save) saved.norm1 = normed; else give(context, normed);
  }
  context.ops.attention_forward(attention_call(call, qkv_rows, attention, lse), context.stream);
  if (save) saved.qkv = qkv_rows.keep(); else qkv_rows.give();

  Taken middle(context, "middle residual", type, {rows, h});
  NormResult normed;
  if (const Dropout projection_dropout = dropout(context, call, 0)) {
    Taken projected(context, "sublayer output", type, {rows, h});
    projection.forward(pass, {.x = attention, .y = projected});
    normed = {Taken(context, "norm output", type, {rows, h}).keep(),
              Taken(context, "norm statistics", DType::f32, {rows}).keep(),
              Taken(context, "norm statistics", DType::f32, {rows}).keep()};
    context.ops.norm_forward({.x = projected, .residual = x, .dropout = projection_dropout, .sum = middle,
                              .gamma = norm2.g(pass.flat), .beta = norm2.b(pass.flat), .eps = norm2.eps,
                              .y = normed.y, .mean = normed.mean, .rstd = normed.rstd},
                             context.stream);
  } else {
    projection.forward(pass, {.x = attention, .residual = x, .y = middle});
    normed = take_norm(context, norm2, pass.flat, middle);
  }
  if (save) saved.attention = attention.keep(), saved.lse = lse.keep();
  return {middle.keep(), normed};
}

Tensor PreNormLayer::forward(const UnitPass& pass, const Call& call, Tensor x, Saved& saved, bool save) const {
  const StepContext& context = pass.context;
  Middle middle = attention_forward(pass, call, x, saved, save);
  if (save) saved.x = x; else give(context, x);
  Tensor y = mlp_forward(pass, call, middle, saved, save);
  give(context, middle.normed.y);
  if (save) saved.norm2 = middle.normed; else give(context, middle.normed);
  if (save) saved.middle = middle.sum; else give(context, middle.sum);
  return y;
}

// The layer's output is not among what backward needs: fc2 is left out.
void PreNormLayer::recompute(const UnitPass& pass, const Call& call, Saved& saved) const {
  const StepContext& context = pass.context;
  Middle middle = attention_forward(pass, call, saved.x, saved, true);
  Taken inner(context, "mlp inner", saved.x.dtype, {saved.x.rows(), shape.inner});
  fc1.forward(pass, {.x = middle.normed.y,
                     .activation = shape.activation == Activation::gelu ? Activation::none : shape.activation,
                     .y = inner});
  give(context, middle.normed.y);
  saved.norm2 = middle.normed;
  saved.middle = middle.sum;
  saved.inner = shape.activation == Activation::relu ? keep_activated(context, inner) : inner.keep();
}

Tensor PreNormLayer::keep_activated(const StepContext& context, Taken& activated) const {
  if (fc2.needs_input(*unit)) return activated.keep();
  const Tensor whole = activated;
  Taken signs(context, "mlp signs", DType::u8, {(whole.numel() + 7) / 8});
  context.ops.pack_signs(whole, signs, context.stream);
  activated.give();
  return signs.keep();
}

void PreNormLayer::give_all_but_input(const StepContext& context, Saved& saved) const {
  for (Tensor* tensor : {&saved.qkv, &saved.attention, &saved.lse, &saved.middle, &saved.inner}) give(context, *tensor);
  for (NormResult* norm : {&saved.norm1, &saved.norm2}) give(context, *norm);
}

// y = middle + drop(fc2(act(fc1(norm2(middle)))))
Tensor PreNormLayer::mlp_forward(const UnitPass& pass, const Call& call, const Middle& middle, Saved& saved,
                                 bool save) const {
  const StepContext& context = pass.context;
  const DType type = middle.sum.dtype;
  const int64_t rows = middle.sum.rows(), h = shape.hidden;
  const bool gelu = shape.activation == Activation::gelu;
  Taken activated(context, "mlp inner", type, {rows, shape.inner});
  if (gelu) {
    Taken before(context, "mlp inner", type, {rows, shape.inner});
    fc1.forward(pass, {.x = middle.normed.y, .activation = shape.activation, .pre_activation = before,
                       .y = activated});
    if (save) saved.inner = before.keep();
  } else {
    fc1.forward(pass, {.x = middle.normed.y, .activation = shape.activation, .y = activated});
  }
  Taken y(context, "residual stream", type, {rows, h});
  if (const Dropout output_dropout = dropout(context, call, 1)) {
    Taken out(context, "sublayer output", type, {rows, h});
    fc2.forward(pass, {.x = activated, .y = out});
    context.ops.dropout_add({.x = out, .residual = middle.sum, .dropout = output_dropout, .y = y},
                            context.stream);
  } else {
    fc2.forward(pass, {.x = activated, .residual = middle.sum, .y = y});
  }
  if (save && !gelu) saved.inner = keep_activated(context, activated);
  return y.keep();
}

// The gradient of `middle`, for the projection, out of that of y.
ResidualGradient PreNormLayer::mlp_backward(UnitBackward& pass, const Call& call, const ResidualGradient& incoming,
                                            Saved& saved) const {
  const StepContext& context = pass.context;
  const Tensor dy = incoming.dy;
  const DType type = dy.dtype;
  const int64_t rows = dy.rows(), h = shape.hidden;
  const bool gelu = shape.activation == Activation::gelu;
  const auto take = [&](const char* name, int64_t cols) {
    return context.arena.take(Owner::activations, name, type, {rows, cols});
  };
  Tensor dout = incoming.of_output();      // gradient of fc2's output
  if (shape.dropout > 0 && !incoming.dropped) {
    dout = take("gradients", h);
    context.ops.dropout_add({.x = dy, .dropout = dropout(context, call, 1), .y = dout}, context.stream);
  }
  Taken dinner(context, "gradients of mlp inner", type, {rows, shape.inner});
  Tensor activated = gelu && fc2.needs_input(pass) ? take("mlp inner", shape.inner) : Tensor{};
  const BiasGradient fc1_bias = fc1.bias_gradient(pass);
  fc2.input_gradient(pass, {.dy = dout, .activation = shape.activation, .saved = saved.inner, .activated = activated,
                            .dbias = fc1_bias.sums, .accumulate_dbias = fc1_bias.accumulate, .dx = dinner});
  // Where fc2 does not need its input, saved.inner may be signs.
  fc2.weight_gradient(pass, dout, gelu || !fc2.needs_input(pass) ? activated : saved.inner, incoming.bias);
  pass.keep(activated);
  if (gelu || !fc2.needs_input(pass)) give(context, saved.inner); else pass.keep(saved.inner);
  saved.inner = {};
  if (dout.data != dy.data) pass.keep(dout);

  Taken dnormed(context, "gradients", type, {rows, h});
  fc1.input_gradient(pass, {.dy = dinner, .dx = dnormed});
  ResidualGradient dmiddle;
  if (shape.dropout > 0) dmiddle.dropped = take("gradients", h);
  dmiddle.bias = projection.bias_gradient(pass);
  // The norm's output, which fc1 read, comes out of the norm's backward: that has the norm's input at hand.
  Tensor normed = fc1.needs_input(pass) ? take("norm output", h) : Tensor{};
  norm2.backward(pass, {.dy = dnormed, .x = saved.middle, .mean = saved.norm2.mean, .rstd = saved.norm2.rstd,
                        .y = normed, .add = dy, .dropout = dropout(context, call, 0), .dropped = dmiddle.dropped,
                        .dbias = dmiddle.bias.sums, .accumulate_dbias = dmiddle.bias.accumulate, .dx = dnormed});
  fc1.weight_gradient(pass, dinner, normed, fc1_bias);
  pass.keep(normed);
  pass.keep(dinner.keep());
  give(context, saved.norm2);
  give(context, saved.middle);
  pass.keep(dy);                           // fc2's weight gradient may still read it
  dmiddle.dy = dnormed.keep();
  return dmiddle;
}

// The gradient of x, for the fc2 of the layer below, out of that of `middle`.
ResidualGradient PreNormLayer::attention_backward(UnitBackward& pass, const Call& call,
                                                  const ResidualGradient& incoming, Saved& saved,
                                                  const PreNormLayer* below) const {
  const StepContext& context = pass.context;
  const Tensor dprojected = incoming.of_output();
  const DType type = dprojected.dtype;
  const int64_t rows = dprojected.rows(), h = shape.hidden, t = call.tokens;
  projection.weight_gradient(pass, dprojected, saved.attention, incoming.bias);
  pass.keep(incoming.dropped);
  Taken dqkv(context, "gradients of qkv", type, {rows, 3 * h});
  const BiasGradient qkv_bias = qkv.bias_gradient(pass);
  {
    Taken dattention(context, "gradients", type, {rows, h});
    projection.input_gradient(pass, {.dy = dprojected, .dx = dattention});
    Taken delta(context, "attention row sums", DType::f32, {call.batch, shape.heads, t});
    context.ops.attention_backward({.forward = attention_call(call, saved.qkv, saved.attention, saved.lse),
                                    .dout = Heads::in(dattention, 0, t), .dq = Heads::in(dqkv, 0, t),
                                    .dk = Heads::in(dqkv, h, t), .dv = Heads::in(dqkv, 2 * h, t), .delta = delta,
                                    .dbias = qkv_bias.sums, .accumulate_dbias = qkv_bias.accumulate},
                                   context.stream);
  }
  give(context, saved.qkv);
  give(context, saved.lse);
  pass.keep(saved.attention);
  saved.attention = {};
  Taken dnormed(context, "gradients", type, {rows, h});
  qkv.input_gradient(pass, {.dy = dqkv, .dx = dnormed});
  const auto take_rows = [&](const char* name) {
    return context.arena.take(Owner::activations, name, type, {rows, h});
  };
  Tensor normed = qkv.needs_input(pass) ? take_rows("norm output") : Tensor{};
  ResidualGradient dx;
  if (below && below->shape.dropout > 0) dx.dropped = take_rows("gradients");
  if (below) dx.bias = below->fc2.bias_gradient_ahead(context, *below->unit);
  norm1.backward(pass, {.dy = dnormed, .x = saved.x, .mean = saved.norm1.mean, .rstd = saved.norm1.rstd, .y = normed,
                        .add = incoming.dy, .dropout = below ? below->dropout(context, call, 1) : Dropout{},
                        .dropped = dx.dropped, .dbias = dx.bias.sums, .accumulate_dbias = dx.bias.accumulate,
                        .dx = dnormed});
  qkv.weight_gradient(pass, dqkv, normed, qkv_bias);
  pass.keep(normed);
  pass.keep(dqkv.keep());
  give(context, saved.norm1);
  give(context, saved.x);
  pass.keep(incoming.dy);
  dx.dy = dnormed.keep();
  return dx;
}

ResidualGradient PreNormLayer::backward(const UnitPass& unit_pass, const UnitGradients& gradients, const Call& call,
                                      ResidualGradient dy, Saved& saved, const PreNormLayer* below) const {
  UnitBackward pass(unit_pass, gradients);
  const ResidualGradient dmiddle = mlp_backward(pass, call, dy, saved);
  const ResidualGradient dx = attention_backward(pass, call, dmiddle, saved, below);
  pass.join();
  return dx;
}

double PreNormLayer::forward_flops(int64_t batch, double tokens) const {
  const double rows = static_cast<double>(batch) * tokens, h = static_cast<double>(shape.hidden);
  const double products = 2 * rows * h * (4 * h + 2 * static_cast<double>(shape.inner));
  return products + 4 * rows * tokens * h * (shape.causal ? 0.5 : 1.0);
}

double PreNormLayer::recompute_flops(int64_t batch, double tokens) const {
  const double fc2_products = 2 * static_cast<double>(batch) * tokens * static_cast<double>(shape.hidden * shape.inner);
  return forward_flops(batch, tokens) - fc2_products;
}

}  // namespace blipft
