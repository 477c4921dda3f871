// The layer of LLaMA, forward and backward; see llama_layer.h.
#include "models/llama_layer.h"

#include <algorithm>
#include <cmath>

namespace blipft {

namespace {

// What the weight gradient of `reader` reads stays until join(); where there is none, it goes at once.
void leave(UnitBackward& pass, const LinearLayer& reader, Tensor tensor) {
  if (reader.needs_input(pass)) pass.keep(tensor);
  else give(pass.context, tensor);
}

}  // namespace

AttentionForward LlamaLayer::attention_call(const Call& call, const Tensor& qkv_rows, const Tensor& out,
                                            const Tensor& lse) const {
  const int64_t q = shape.q_width(), kv = shape.kv_width(), t = call.tokens;
  return {.dtype = qkv_rows.dtype, .batch = call.batch, .heads = shape.heads, .head_size = shape.head_size,
          .query_tokens = t, .kv_tokens = t, .kv_heads = shape.kv_heads, .q = Heads::in(qkv_rows, 0, t),
          .k = Heads::in(qkv_rows, q, t), .v = Heads::in(qkv_rows, q + kv, t),
          .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_size)), .causal = true,
          .kv_lengths = call.kv_lengths, .packing = call.packing, .out = Heads::in(out, 0, t), .lse = lse};
}

// q and k lie side by side, as heads of one size: one pass over both.
void LlamaLayer::rotate(const StepContext& context, const Call& call, const Tensor& qkv_rows, bool inverse) const {
  Rotary args{.x = MatrixView(qkv_rows).columns(0, shape.q_width() + shape.kv_width()), .head_size = shape.head_size,
              .positions = call.positions, .inverse = inverse};
  std::copy(shape.frequencies.begin(), shape.frequencies.end(), args.frequencies);
  context.ops.rotary(args, context.stream);
}

// middle = x + o(attention(rotary(norm1(x)))), [M, H]
Tensor LlamaLayer::attention_forward(const UnitPass& pass, const Call& call, const Tensor& x, Saved& saved,
                                     bool save) const {
  const StepContext& context = pass.context;
  const int64_t rows = x.rows();
  Taken attention(context, "attention output", x.dtype, {rows, shape.q_width()});
  Taken lse(context, "attention log-sum-exp", DType::f32, {call.batch, shape.heads, call.tokens});
  Taken qkv_rows(context, "qkv", x.dtype, {rows, shape.qkv_width()});
  NormResult normed = take_norm(context, norm1, pass.flat, x);
  qkv.forward(pass, {.x = normed.y, .y = qkv_rows});
  give(context, normed.y);
  if (save) saved.norm1 = normed; else give(context, normed);
  rotate(context, call, qkv_rows, false);
  context.ops.attention_forward(attention_call(call, qkv_rows, attention, lse), context.stream);
  if (save) saved.qkv = qkv_rows.keep(), saved.lse = lse.keep();
  qkv_rows.give();
  Taken middle(context, "middle residual", x.dtype, {rows, shape.hidden});
  o.forward(pass, {.x = attention, .residual = x, .y = middle});
  if (save) saved.attention = attention.keep();
  return middle.keep();
}

// gate and up of norm2(middle), [M, 2 F]
Tensor LlamaLayer::gate_up_forward(const UnitPass& pass, const Tensor& middle, Saved& saved, bool save) const {
  const StepContext& context = pass.context;
  Taken rows(context, "gate and up", middle.dtype, {middle.rows(), 2 * shape.inner});
  NormResult normed = take_norm(context, norm2, pass.flat, middle);
  gate_up.forward(pass, {.x = normed.y, .y = rows});
  give(context, normed.y);
  if (save) saved.norm2 = normed; else give(context, normed);
  return rows.keep();
}

Tensor LlamaLayer::forward(const UnitPass& pass, const Call& call, Tensor x, Saved& saved, bool save) const {
  const StepContext& context = pass.context;
  Tensor middle = attention_forward(pass, call, x, saved, save);
  if (save) saved.x = x; else give(context, x);
  Tensor gates = gate_up_forward(pass, middle, saved, save);
  Taken inner(context, "mlp inner", middle.dtype, {middle.rows(), shape.inner});
  context.ops.swiglu_forward({.gate_up = gates, .y = inner}, context.stream);
  if (save) saved.gate_up = gates; else give(context, gates);
  Taken y(context, "residual stream", middle.dtype, {middle.rows(), shape.hidden});
  down.forward(pass, {.x = inner, .residual = middle, .y = y});
  if (save) saved.middle = middle; else give(context, middle);
  return y.keep();
}

// The layer's output is not among what backward needs, and the inner values come out of backward: down is left out.
void LlamaLayer::recompute(const UnitPass& pass, const Call& call, Saved& saved) const {
  saved.middle = attention_forward(pass, call, saved.x, saved, true);
  saved.gate_up = gate_up_forward(pass, saved.middle, saved, true);
}

void LlamaLayer::give_all_but_input(const StepContext& context, Saved& saved) const {
  for (Tensor* tensor : {&saved.qkv, &saved.attention, &saved.lse, &saved.middle, &saved.gate_up})
    give(context, *tensor);
  for (NormResult* norm : {&saved.norm1, &saved.norm2}) give(context, *norm);
}

// The gradient of `middle` out of that of y, both [M, H].
Tensor LlamaLayer::mlp_backward(UnitBackward& pass, const Tensor& dy, Saved& saved) const {
  const StepContext& context = pass.context;
  const auto take = [&](const char* name, int64_t cols) {
    return context.arena.take(Owner::activations, name, dy.dtype, {dy.rows(), cols});
  };
  const Tensor gates = saved.gate_up;      // becomes its own gradient
  const Tensor inner = down.needs_input(pass) ? take("mlp inner", shape.inner) : Tensor{};
  {
    Taken dinner(context, "gradients of mlp inner", dy.dtype, {dy.rows(), shape.inner});
    down.input_gradient(pass, {.dy = dy, .dx = dinner});
    context.ops.swiglu_backward({.gate_up = gates, .y = inner, .dy = dinner, .dgate_up = gates}, context.stream);
  }
  down.weight_gradient(pass, dy, inner);
  leave(pass, down, inner);
  Taken dnormed(context, "gradients", dy.dtype, {dy.rows(), shape.hidden});
  gate_up.input_gradient(pass, {.dy = gates, .dx = dnormed});
  // The norm's output, which gate_up read, comes out of the norm's backward: that has the norm's input at hand.
  const Tensor normed = gate_up.needs_input(pass) ? take("norm output", shape.hidden) : Tensor{};
  norm2.backward(pass, {.dy = dnormed, .x = saved.middle, .rstd = saved.norm2.rstd, .y = normed, .add = dy,
                        .dx = dnormed});
  gate_up.weight_gradient(pass, gates, normed);
  leave(pass, gate_up, normed);
  leave(pass, gate_up, gates);
  saved.gate_up = {};
  give(context, saved.norm2);
  give(context, saved.middle);
  leave(pass, down, dy);
  return dnormed.keep();
}

// The gradient of x out of that of `middle`, both [M, H].
Tensor LlamaLayer::attention_backward(UnitBackward& pass, const Call& call, const Tensor& dmiddle, Saved& saved) const {
  const StepContext& context = pass.context;
  const DType type = dmiddle.dtype;
  const int64_t rows = dmiddle.rows(), q = shape.q_width(), kv = shape.kv_width(), t = call.tokens;
  o.weight_gradient(pass, dmiddle, saved.attention);
  Taken dqkv(context, "gradients of qkv", type, {rows, shape.qkv_width()});
  {
    Taken dattention(context, "gradients", type, {rows, q});
    o.input_gradient(pass, {.dy = dmiddle, .dx = dattention});
    Taken delta(context, "attention row sums", DType::f32, {call.batch, shape.heads, t});
    // Not dbias too: biases of q and k are added before the rotation, and these are the columns behind it.
    context.ops.attention_backward({.forward = attention_call(call, saved.qkv, saved.attention, saved.lse),
                                    .dout = Heads::in(dattention, 0, t), .dq = Heads::in(dqkv, 0, t),
                                    .dk = Heads::in(dqkv, q, t), .dv = Heads::in(dqkv, q + kv, t), .delta = delta},
                                   context.stream);
  }
  rotate(context, call, dqkv, true);
  give(context, saved.qkv);
  give(context, saved.lse);
  leave(pass, o, saved.attention);
  saved.attention = {};
  Taken dnormed(context, "gradients", type, {rows, shape.hidden});
  qkv.input_gradient(pass, {.dy = dqkv, .dx = dnormed});
  Tensor normed;
  if (qkv.needs_input(pass))
    normed = context.arena.take(Owner::activations, "norm output", type, {rows, shape.hidden});
  norm1.backward(pass, {.dy = dnormed, .x = saved.x, .rstd = saved.norm1.rstd, .y = normed, .add = dmiddle,
                        .dx = dnormed});
  qkv.weight_gradient(pass, dqkv, normed);
  leave(pass, qkv, normed);
  leave(pass, qkv, dqkv.keep());
  give(context, saved.norm1);
  give(context, saved.x);
  leave(pass, o, dmiddle);
  return dnormed.keep();
}

ResidualGradient LlamaLayer::backward(const UnitPass& unit_pass, const UnitGradients& gradients, const Call& call,
                                      ResidualGradient dy, Saved& saved, const LlamaLayer*) const {
  UnitBackward pass(unit_pass, gradients);
  const Tensor dmiddle = mlp_backward(pass, dy.dy, saved);
  const Tensor dx = attention_backward(pass, call, dmiddle, saved);
  pass.join();
  return {.dy = dx};
}

double LlamaLayer::product_flops(int64_t batch, double tokens) const {
  const int64_t weights = qkv.in * qkv.out + o.in * o.out + gate_up.in * gate_up.out + down.in * down.out;
  return 2 * static_cast<double>(batch) * tokens * static_cast<double>(weights);
}

// q k^T and the product with v, for every head of queries; half of it, since attention is causal.
double LlamaLayer::attention_flops(int64_t batch, double tokens) const {
  return 2 * static_cast<double>(batch) * tokens * tokens * static_cast<double>(shape.q_width());
}

double LlamaLayer::forward_flops(int64_t batch, double tokens) const {
  return product_flops(batch, tokens) + attention_flops(batch, tokens);
}

double LlamaLayer::recompute_flops(int64_t batch, double tokens) const {
  const double down_products = 2 * static_cast<double>(batch) * tokens * static_cast<double>(down.in * down.out);
  return forward_flops(batch, tokens) - down_products;
}

// The recomputed scores inside of attention's backward do not count.
double LlamaLayer::backward_flops(int64_t batch, double tokens, bool trained) const {
  return (trained ? 2 : 1) * product_flops(batch, tokens) + 2 * attention_flops(batch, tokens);
}

}  // namespace blipft
