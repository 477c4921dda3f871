// One Q-Former layer, forward and backward. Legend in qformer.h.
#include <cmath>

#include "models/qformer.h"

namespace blipft {

namespace {
// dropout sites of a layer
enum Site : uint32_t { kSelfProbabilities, kSelfOutput, kCrossProbabilities, kCrossOutput, kMlpOutput };
}  // namespace

Dropout QFormerLayer::dropout(const StepContext& context, const Call& call, uint32_t which, float p) const {
  return {context.training ? p : 0, dropout_site + which, context.seed, call.sample_keys, shape.queries};
}

AttentionForward QFormerLayer::attention_call(const StepContext& context, const Call& call, const Attention& block,
                                              const SavedAttention& saved) const {
  const int64_t d = shape.hidden, queries = shape.queries;
  const int64_t keys = block.cross ? call.picture_tokens : queries;
  AttentionForward args{.dtype = saved.q.dtype, .batch = call.batch, .heads = shape.heads, .head_size = d / shape.heads,
                        .query_tokens = queries, .kv_tokens = keys, .q = Heads::in(saved.q, 0, queries),
                        .scale = 1.0f / std::sqrt(static_cast<float>(d / shape.heads)),
                        .dropout = dropout(context, call, block.cross ? kCrossProbabilities : kSelfProbabilities,
                                           shape.attention_dropout),
                        .out = Heads::in(saved.out, 0, queries), .lse = saved.lse};
  args.k = block.cross ? Heads::in(saved.kv, 0, keys) : Heads::in(saved.q, d, queries);
  args.v = block.cross ? Heads::in(saved.kv, d, keys) : Heads::in(saved.q, 2 * d, queries);
  return args;
}

// norm(x + drop(output(attention(x, x or picture))))
Tensor QFormerLayer::attention_forward(const StepContext& context, const Tensor& flat, const Call& call,
                                       const Attention& block, const Tensor& x, SavedAttention& saved) const {
  const DType type = x.dtype;
  const int64_t rows = x.rows(), d = shape.hidden;
  Arena& arena = context.arena;
  saved.out = arena.take(Owner::activations, "attention output", type, {rows, d});
  saved.lse =
      arena.take(Owner::activations, "attention log-sum-exp", DType::f32, {call.batch, shape.heads, shape.queries});
  if (block.cross) {
    saved.q = arena.take(Owner::activations, "qkv", type, {rows, d});
    saved.kv = arena.take(Owner::activations, "qkv", type, {call.picture.rows(), 2 * d});
    context.ops.linear_forward({.x = x, .w = block.query.w(flat), .bias = block.query.b(flat), .y = saved.q},
                               context.stream);
    context.ops.linear_forward(
        {.x = call.picture, .w = block.key_value.w(flat), .bias = block.key_value.b(flat), .y = saved.kv},
        context.stream);
  } else {
    saved.q = arena.take(Owner::activations, "qkv", type, {rows, 3 * d});
    context.ops.linear_forward({.x = x, .w = block.qkv.w(flat), .bias = block.qkv.b(flat), .y = saved.q},
                               context.stream);
  }
  context.ops.attention_forward(attention_call(context, call, block, saved), context.stream);
  saved.sum = arena.take(Owner::activations, "residual sum", type, {rows, d});
  saved.mean = arena.take(Owner::activations, "norm statistics", DType::f32, {rows});
  saved.rstd = arena.take(Owner::activations, "norm statistics", DType::f32, {rows});
  Taken projected(context, "sublayer output", type, {rows, d});
  context.ops.linear_forward({.x = saved.out, .w = block.output.w(flat), .bias = block.output.b(flat), .y = projected},
                             context.stream);
  Taken y(context, "norm output", type, {rows, d});
  context.ops.norm_forward(
      {.x = projected, .residual = x,
       .dropout = dropout(context, call, block.cross ? kCrossOutput : kSelfOutput, shape.hidden_dropout),
       .sum = saved.sum, .gamma = block.norm.g(flat), .beta = block.norm.b(flat), .eps = block.norm.eps, .y = y,
       .mean = saved.mean, .rstd = saved.rstd},
      context.stream);
  return y.keep();
}

// norm(x + drop(fc2(gelu(fc1(x)))))
Tensor QFormerLayer::mlp_forward(const StepContext& context, const Tensor& flat, const Call& call, const Tensor& x,
                                 Saved& saved) const {
  const DType type = x.dtype;
  const int64_t rows = x.rows(), d = shape.hidden;
  Arena& arena = context.arena;
  saved.inner = arena.take(Owner::activations, "mlp inner", type, {rows, shape.inner});
  saved.sum = arena.take(Owner::activations, "residual sum", type, {rows, d});
  saved.mean = arena.take(Owner::activations, "norm statistics", DType::f32, {rows});
  saved.rstd = arena.take(Owner::activations, "norm statistics", DType::f32, {rows});
  Taken activated(context, "mlp inner", type, {rows, shape.inner});
  context.ops.linear_forward({.x = x, .w = fc1.w(flat), .bias = fc1.b(flat), .activation = shape.activation,
                              .pre_activation = saved.inner, .y = activated},
                             context.stream);
  Taken out(context, "sublayer output", type, {rows, d});
  context.ops.linear_forward({.x = activated, .w = fc2.w(flat), .bias = fc2.b(flat), .y = out}, context.stream);
  activated.give();
  Taken y(context, "norm output", type, {rows, d});
  context.ops.norm_forward({.x = out, .residual = x,
                            .dropout = dropout(context, call, kMlpOutput, shape.hidden_dropout), .sum = saved.sum,
                            .gamma = norm.g(flat), .beta = norm.b(flat), .eps = norm.eps, .y = y, .mean = saved.mean,
                            .rstd = saved.rstd},
                           context.stream);
  return y.keep();
}

Tensor QFormerLayer::forward(const StepContext& context, const Tensor& flat, const Call& call, Tensor x, Saved& saved,
                             bool save) const {
  saved.x = x;
  Tensor h = attention_forward(context, flat, call, self, x, saved.self);
  if (cross.present) {
    Tensor after = attention_forward(context, flat, call, cross, h, saved.cross);
    give(context, h);
    h = after;
  }
  Tensor y = mlp_forward(context, flat, call, h, saved);
  give(context, h);
  if (!save) {
    drop_all_but_input(context, saved);
    give(context, saved.x);
  }
  return y;
}

void QFormerLayer::give_attention(const StepContext& context, SavedAttention& saved) const {
  for (Tensor* tensor : {&saved.q, &saved.kv, &saved.out, &saved.lse, &saved.sum, &saved.mean, &saved.rstd})
    give(context, *tensor);
}

void QFormerLayer::drop_all_but_input(const StepContext& context, Saved& saved) const {
  give_attention(context, saved.self);
  give_attention(context, saved.cross);
  for (Tensor* tensor : {&saved.inner, &saved.sum, &saved.mean, &saved.rstd}) give(context, *tensor);
}

// The output of a block's norm, computed again from its saved input.
Tensor QFormerLayer::normed_again(const StepContext& context, const Tensor& flat, const Attention& block,
                                  const SavedAttention& saved) const {
  Taken y(context, "norm output", saved.sum.dtype, saved.sum.shape);
  context.ops.norm_forward({.x = saved.sum, .gamma = block.norm.g(flat), .beta = block.norm.b(flat),
                            .eps = block.norm.eps, .y = y, .mean = saved.mean, .rstd = saved.rstd},
                           context.stream);
  return y.keep();
}

// Takes dy over, returns the gradient of x.
Tensor QFormerLayer::mlp_backward(const StepContext& context, const Tensor& flat, const UnitGradient* gradient,
                                  WeightGradients& weights, const Call& call, const Tensor& x, Tensor dy,
                                  Saved& saved) const {
  const DType type = dy.dtype;
  const int64_t rows = dy.rows(), d = shape.hidden;
  const bool dropping = shape.hidden_dropout > 0;
  Tensor dropped = dropping ? context.arena.take(Owner::activations, "gradients", type, {rows, d}) : Tensor{};
  context.ops.norm_backward({.dy = dy, .x = saved.sum, .mean = saved.mean, .rstd = saved.rstd, .gamma = norm.g(flat),
                             .dgamma = gradient ? norm.g(gradient->flat) : Tensor{},
                             .dbeta = gradient ? norm.b(gradient->flat) : Tensor{},
                             .accumulate = gradient && gradient->accumulate,
                             .dropout = dropout(context, call, kMlpOutput, shape.hidden_dropout), .dropped = dropped,
                             .dbias = gradient ? fc2.b(gradient->flat) : Tensor{},
                             .accumulate_dbias = gradient && gradient->accumulate, .dx = dy},
                            context.stream);
  const Tensor dout = dropping ? dropped : dy;
  Taken dinner(context, "gradients of mlp inner", type, {rows, shape.inner});
  Tensor activated =
      gradient ? context.arena.take(Owner::activations, "mlp inner", type, {rows, shape.inner}) : Tensor{};
  context.ops.linear_backward_input({.dy = dout, .w = fc2.w(flat), .activation = shape.activation, .saved = saved.inner,
                                     .activated = activated, .dbias = gradient ? fc1.b(gradient->flat) : Tensor{},
                                     .accumulate_dbias = gradient && gradient->accumulate, .dx = dinner},
                                    context.stream);
  weights.add(fc2, dout, activated, false);
  weights.keep(activated);
  weights.keep(dropped);
  weights.add(fc1, dinner, x, false);
  Taken dx(context, "gradients", type, {rows, d});
  context.ops.linear_backward_input({.dy = dinner, .w = fc1.w(flat), .add = dy, .dx = dx}, context.stream);
  weights.keep(dinner.keep());
  weights.keep(dy);
  return dx.keep();
}

// Takes dy over, returns the gradient of x.
Tensor QFormerLayer::attention_backward(const StepContext& context, const Tensor& flat, const UnitGradient* gradient,
                                        WeightGradients& weights, const Call& call, const Attention& block,
                                        const Tensor& x, Tensor dy, SavedAttention& saved, const Tensor& dpicture,
                                        bool& picture_started) const {
  const DType type = dy.dtype;
  const int64_t rows = dy.rows(), d = shape.hidden, queries = shape.queries;
  const bool dropping = shape.hidden_dropout > 0;
  Tensor dropped = dropping ? context.arena.take(Owner::activations, "gradients", type, {rows, d}) : Tensor{};
  context.ops.norm_backward(
      {.dy = dy, .x = saved.sum, .mean = saved.mean, .rstd = saved.rstd, .gamma = block.norm.g(flat),
       .dgamma = gradient ? block.norm.g(gradient->flat) : Tensor{},
       .dbeta = gradient ? block.norm.b(gradient->flat) : Tensor{}, .accumulate = gradient && gradient->accumulate,
       .dropout = dropout(context, call, block.cross ? kCrossOutput : kSelfOutput, shape.hidden_dropout),
       .dropped = dropped, .dbias = gradient ? block.output.b(gradient->flat) : Tensor{},
       .accumulate_dbias = gradient && gradient->accumulate, .dx = dy},
      context.stream);
  const Tensor dprojected = dropping ? dropped : dy;
  weights.add(block.output, dprojected, saved.out, false);
  Taken dout(context, "gradients", type, {rows, d});
  context.ops.linear_backward_input({.dy = dprojected, .w = block.output.w(flat), .dx = dout}, context.stream);
  weights.keep(dropped);

  const int64_t keys = block.cross ? call.picture_tokens : queries;
  Taken dq(context, "gradients of qkv", type, {rows, block.cross ? d : 3 * d});
  Tensor dkv = block.cross
                   ? context.arena.take(Owner::activations, "gradients of qkv", type, {call.batch * keys, 2 * d})
                   : Tensor{};
  Taken delta(context, "attention row sums", DType::f32, {call.batch, shape.heads, queries});
  context.ops.attention_backward({.forward = attention_call(context, call, block, saved),
                                  .dout = Heads::in(dout, 0, queries), .dq = Heads::in(dq, 0, queries),
                                  .dk = block.cross ? Heads::in(dkv, 0, keys) : Heads::in(dq, d, queries),
                                  .dv = block.cross ? Heads::in(dkv, d, keys) : Heads::in(dq, 2 * d, queries),
                                  .delta = delta,
                                  .dbias = gradient && !block.cross ? block.qkv.b(gradient->flat) : Tensor{},
                                  .accumulate_dbias = gradient && gradient->accumulate},
                                 context.stream);
  const Linear& from_x = block.cross ? block.query : block.qkv;
  weights.add(from_x, dq, x, block.cross);
  Taken dx(context, "gradients", type, {rows, d});
  context.ops.linear_backward_input({.dy = dq, .w = from_x.w(flat), .add = dy, .dx = dx}, context.stream);
  weights.keep(dq.keep());
  weights.keep(dy);
  if (block.cross) {
    weights.add(block.key_value, dkv, call.picture);
    if (dpicture) {
      context.ops.linear_backward_input(
          {.dy = dkv, .w = block.key_value.w(flat), .add = picture_started ? dpicture : Tensor{}, .dx = dpicture},
          context.stream);
      picture_started = true;
    }
    weights.keep(dkv);
  }
  weights.keep(saved.out);                 // the output layer's weight gradient may still read it
  saved.out = {};
  give_attention(context, saved);
  return dx.keep();
}

Tensor QFormerLayer::backward(const StepContext& context, const Tensor& flat, const UnitGradient* gradient,
                              const Call& call, Tensor dy, Saved& saved, const Tensor& dpicture,
                              bool& picture_started) const {
  WeightGradients weights(context, gradient);
  Tensor h1 = normed_again(context, flat, self, saved.self);
  Tensor h2 = cross.present ? normed_again(context, flat, cross, saved.cross) : h1;
  dy = mlp_backward(context, flat, gradient, weights, call, h2, dy, saved);
  if (cross.present) {
    dy = attention_backward(context, flat, gradient, weights, call, cross, h1, dy, saved.cross, dpicture,
                            picture_started);
    weights.keep(h2);
  }
  dy = attention_backward(context, flat, gradient, weights, call, self, saved.x, dy, saved.self, dpicture,
                          picture_started);
  weights.join();
  give(context, h1);
  drop_all_but_input(context, saved);
  give(context, saved.x);
  return dy;
}

}  // namespace blipft
