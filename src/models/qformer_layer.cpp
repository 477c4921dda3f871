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

Dropout QFormerLayer::output_dropout(const StepContext& context, const Call& call, const Attention& block) const {
  return dropout(context, call, block.cross ? kCrossOutput : kSelfOutput, shape.hidden_dropout);
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
Tensor QFormerLayer::attention_forward(const UnitPass& pass, const Call& call, const Attention& block, const Tensor& x,
                                       SavedAttention& saved) const {
  const StepContext& context = pass.context;
  const DType type = x.dtype;
  const int64_t rows = x.rows(), d = shape.hidden;
  Arena& arena = context.arena;
  saved.out = arena.take(Owner::activations, "attention output", type, {rows, d});
  saved.lse =
      arena.take(Owner::activations, "attention log-sum-exp", DType::f32, {call.batch, shape.heads, shape.queries});
  if (block.cross) {
    saved.q = arena.take(Owner::activations, "qkv", type, {rows, d});
    saved.kv = arena.take(Owner::activations, "qkv", type, {call.picture.rows(), 2 * d});
    block.query.forward(pass, {.x = x, .y = saved.q});
    block.key_value.forward(pass, {.x = call.picture, .y = saved.kv});
  } else {
    saved.q = arena.take(Owner::activations, "qkv", type, {rows, 3 * d});
    block.qkv.forward(pass, {.x = x, .y = saved.q});
  }
  context.ops.attention_forward(attention_call(context, call, block, saved), context.stream);
  saved.norm = take_saved_norm(context, type, rows);
  Taken projected(context, "sublayer output", type, {rows, d});
  block.output.forward(pass, {.x = saved.out, .y = projected});
  Taken y(context, "norm output", type, {rows, d});
  context.ops.norm_forward({.x = projected, .residual = x, .dropout = output_dropout(context, call, block),
                            .sum = saved.norm.sum, .gamma = block.norm.g(pass.flat), .beta = block.norm.b(pass.flat),
                            .eps = block.norm.eps, .y = y, .mean = saved.norm.mean, .rstd = saved.norm.rstd},
                           context.stream);
  return y.keep();
}

// norm(x + drop(fc2(gelu(fc1(x)))))
Tensor QFormerLayer::mlp_forward(const UnitPass& pass, const Call& call, const Tensor& x, Saved& saved) const {
  const StepContext& context = pass.context;
  const DType type = x.dtype;
  const int64_t rows = x.rows(), d = shape.hidden;
  saved.inner = context.arena.take(Owner::activations, "mlp inner", type, {rows, shape.inner});
  saved.norm = take_saved_norm(context, type, rows);
  Taken activated(context, "mlp inner", type, {rows, shape.inner});
  fc1.forward(pass, {.x = x, .activation = shape.activation, .pre_activation = saved.inner, .y = activated});
  Taken out(context, "sublayer output", type, {rows, d});
  fc2.forward(pass, {.x = activated, .y = out});
  activated.give();
  Taken y(context, "norm output", type, {rows, d});
  context.ops.norm_forward({.x = out, .residual = x,
                            .dropout = dropout(context, call, kMlpOutput, shape.hidden_dropout),
                            .sum = saved.norm.sum, .gamma = norm.g(pass.flat), .beta = norm.b(pass.flat),
                            .eps = norm.eps, .y = y, .mean = saved.norm.mean, .rstd = saved.norm.rstd},
                           context.stream);
  return y.keep();
}

Tensor QFormerLayer::forward(const UnitPass& pass, const Call& call, Tensor x, Saved& saved, bool save) const {
  const StepContext& context = pass.context;
  saved.x = x;
  Tensor h = attention_forward(pass, call, self, x, saved.self);
  if (cross.present) {
    Tensor after = attention_forward(pass, call, cross, h, saved.cross);
    give(context, h);
    h = after;
  }
  Tensor y = mlp_forward(pass, call, h, saved);
  give(context, h);
  if (!save) {
    drop_all_but_input(context, saved);
    give(context, saved.x);
  }
  return y;
}

QFormerLayer::SavedNorm QFormerLayer::take_saved_norm(const StepContext& context, DType type, int64_t rows) const {
  Arena& arena = context.arena;
  return {arena.take(Owner::activations, "residual sum", type, {rows, shape.hidden}),
          arena.take(Owner::activations, "norm statistics", DType::f32, {rows}),
          arena.take(Owner::activations, "norm statistics", DType::f32, {rows})};
}

void QFormerLayer::give_norm(const StepContext& context, SavedNorm& saved) const {
  for (Tensor* tensor : {&saved.sum, &saved.mean, &saved.rstd}) give(context, *tensor);
}

void QFormerLayer::give_attention(const StepContext& context, SavedAttention& saved) const {
  for (Tensor* tensor : {&saved.q, &saved.kv, &saved.out, &saved.lse}) give(context, *tensor);
  give_norm(context, saved.norm);
}

void QFormerLayer::drop_all_but_input(const StepContext& context, Saved& saved) const {
  give_attention(context, saved.self);
  give_attention(context, saved.cross);
  give(context, saved.inner);
  give_norm(context, saved.norm);
}

// The output of a block's norm, computed again from its saved input.
Tensor QFormerLayer::normed_again(const UnitPass& pass, const Attention& block, const SavedAttention& saved) const {
  const SavedNorm& of = saved.norm;
  Taken y(pass.context, "norm output", of.sum.dtype, of.sum.shape);
  pass.context.ops.norm_forward({.x = of.sum, .gamma = block.norm.g(pass.flat), .beta = block.norm.b(pass.flat),
                                 .eps = block.norm.eps, .y = y, .mean = of.mean, .rstd = of.rstd},
                                pass.context.stream);
  return y.keep();
}

// dy becomes, in place, the gradient of what the norm that ends a sublayer read: of x and, through the dropout that the
// result stands for, of the sublayer's output. Absent without dropout: both are dy then.
Tensor QFormerLayer::norm_backward(UnitBackward& pass, const Norm& of, const SavedNorm& saved,
                                   const Dropout& drop, const BiasGradient& output_bias, const Tensor& dy) const {
  const Tensor dropped =
      drop ? pass.context.arena.take(Owner::activations, "gradients", dy.dtype, dy.shape) : Tensor{};
  of.backward(pass, {.dy = dy, .x = saved.sum, .mean = saved.mean, .rstd = saved.rstd, .dropout = drop,
                     .dropped = dropped, .dbias = output_bias.sums, .accumulate_dbias = output_bias.accumulate,
                     .dx = dy});
  return dropped;
}

// Takes dy over, returns the gradient of x.
Tensor QFormerLayer::mlp_backward(UnitBackward& pass, const Call& call, const Tensor& x, Tensor dy,
                                  Saved& saved) const {
  const StepContext& context = pass.context;
  const DType type = dy.dtype;
  const int64_t rows = dy.rows(), d = shape.hidden;
  const BiasGradient fc1_bias = fc1.bias_gradient(pass), fc2_bias = fc2.bias_gradient(pass);
  const Tensor dropped = norm_backward(pass, norm, saved.norm,
                                       dropout(context, call, kMlpOutput, shape.hidden_dropout), fc2_bias, dy);
  const Tensor dout = dropped ? dropped : dy;
  Taken dinner(context, "gradients of mlp inner", type, {rows, shape.inner});
  Tensor activated = fc2.needs_input(pass)
                         ? context.arena.take(Owner::activations, "mlp inner", type, {rows, shape.inner})
                         : Tensor{};
  fc2.input_gradient(pass, {.dy = dout, .activation = shape.activation, .saved = saved.inner, .activated = activated,
                            .dbias = fc1_bias.sums, .accumulate_dbias = fc1_bias.accumulate, .dx = dinner});
  fc2.weight_gradient(pass, dout, activated, fc2_bias);
  pass.keep(activated);
  pass.keep(dropped);
  fc1.weight_gradient(pass, dinner, x, fc1_bias);
  Taken dx(context, "gradients", type, {rows, d});
  fc1.input_gradient(pass, {.dy = dinner, .add = dy, .dx = dx});
  pass.keep(dinner.keep());
  pass.keep(dy);
  return dx.keep();
}

// Takes dy over, returns the gradient of x.
Tensor QFormerLayer::attention_backward(UnitBackward& pass, const Call& call, const Attention& block, const Tensor& x,
                                        Tensor dy, SavedAttention& saved, PictureGradient& dpicture) const {
  const StepContext& context = pass.context;
  const DType type = dy.dtype;
  const int64_t rows = dy.rows(), d = shape.hidden, queries = shape.queries;
  const BiasGradient output_bias = block.output.bias_gradient(pass);
  const Tensor dropped =
      norm_backward(pass, block.norm, saved.norm, output_dropout(context, call, block), output_bias, dy);
  const Tensor dprojected = dropped ? dropped : dy;
  block.output.weight_gradient(pass, dprojected, saved.out, output_bias);
  Taken dout(context, "gradients", type, {rows, d});
  block.output.input_gradient(pass, {.dy = dprojected, .dx = dout});
  pass.keep(dropped);

  const int64_t keys = block.cross ? call.picture_tokens : queries;
  Taken dq(context, "gradients of qkv", type, {rows, block.cross ? d : 3 * d});
  Tensor dkv = block.cross
                   ? context.arena.take(Owner::activations, "gradients of qkv", type, {call.batch * keys, 2 * d})
                   : Tensor{};
  Taken delta(context, "attention row sums", DType::f32, {call.batch, shape.heads, queries});
  // Attention sums the columns of q, k and v where they are one matrix.
  const LinearLayer& from_x = block.cross ? block.query : block.qkv;
  const BiasGradient from_x_bias = block.cross ? BiasGradient{} : from_x.bias_gradient(pass);
  context.ops.attention_backward({.forward = attention_call(context, call, block, saved),
                                  .dout = Heads::in(dout, 0, queries), .dq = Heads::in(dq, 0, queries),
                                  .dk = block.cross ? Heads::in(dkv, 0, keys) : Heads::in(dq, d, queries),
                                  .dv = block.cross ? Heads::in(dkv, d, keys) : Heads::in(dq, 2 * d, queries),
                                  .delta = delta, .dbias = from_x_bias.sums,
                                  .accumulate_dbias = from_x_bias.accumulate},
                                 context.stream);
  from_x.weight_gradient(pass, dq, x, from_x_bias);
  Taken dx(context, "gradients", type, {rows, d});
  from_x.input_gradient(pass, {.dy = dq, .add = dy, .dx = dx});
  pass.keep(dq.keep());
  pass.keep(dy);
  if (block.cross) {
    block.key_value.weight_gradient(pass, dkv, call.picture);
    if (dpicture.sum) {
      block.key_value.input_gradient(
          pass, {.dy = dkv, .add = dpicture.started ? dpicture.sum : Tensor{}, .dx = dpicture.sum});
      dpicture.started = true;
    }
    pass.keep(dkv);
  }
  pass.keep(saved.out);                    // the output layer's weight gradient may still read it
  saved.out = {};
  give_attention(context, saved);
  return dx.keep();
}

Tensor QFormerLayer::backward(const UnitPass& unit_pass, const UnitGradients& gradients, const Call& call, Tensor dy,
                              Saved& saved, PictureGradient& dpicture) const {
  const StepContext& context = unit_pass.context;
  UnitBackward pass(unit_pass, gradients);
  Tensor h1 = normed_again(pass, self, saved.self);
  Tensor h2 = cross.present ? normed_again(pass, cross, saved.cross) : h1;
  dy = mlp_backward(pass, call, h2, dy, saved);
  if (cross.present) {
    dy = attention_backward(pass, call, cross, h1, dy, saved.cross, dpicture);
    pass.keep(h2);
  }
  dy = attention_backward(pass, call, self, saved.x, dy, saved.self, dpicture);
  pass.join();
  give(context, h1);
  drop_all_but_input(context, saved);
  give(context, saved.x);
  return dy;
}

}  // namespace blipft
