// Implements attention forward and backward; see attention.h.
#include "models/blocks/attention.h"

#include <algorithm>
#include <cmath>

#include "blipft/head_norm.h"

namespace blipft {

RotaryAxes rotary_axes(std::span<const int64_t> sections, bool interleaved) {
  RotaryAxes axes{};
  size_t next = 0;
  const size_t count = sections.size();
  for (size_t a = 0; a < count; ++a)
    for (int64_t n = 0; n < sections[a]; ++n, ++next) {
      const size_t pair = interleaved ? count * static_cast<size_t>(n) + a : next;
      BLIPFT_CHECK(pair < axes.size(), "sections of more than ", axes.size(), " pairs");
      axes[pair] = static_cast<uint8_t>(a);
    }
  return axes;
}

AttentionForward Attention::arguments(const StepContext& context, const LayerCall& call, const SavedBlock& saved,
                                      const Tensor& qk) const {
  const RowGroups queries = groups(call);
  const int64_t q = shape_.q_width(), kv = shape_.kv_width(), t = queries.max_rows;
  const int64_t keys = cross_ ? call.memory_tokens : t;
  AttentionForward args{.dtype = saved.qkv.dtype, .batch = queries.count, .heads = shape_.heads,
                        .head_size = shape_.head_size, .query_tokens = t, .kv_tokens = keys,
                        .kv_heads = shape_.kv_heads, .q = Heads::in(qk ? qk : saved.qkv, 0, t),
                        .scale = scale(),
                        .causal = shape_.causal, .window = shape_.window, .cap = shape_.cap, .packing = queries.packing,
                        .out = Heads::in(saved.attention, 0, t), .lse = saved.lse};
  args.k = cross_ ? Heads::in(saved.kv, 0, keys) : Heads::in(qk ? qk : saved.qkv, q, t);
  args.v = cross_ ? Heads::in(saved.kv, kv, keys) : Heads::in(saved.qkv, q + kv, t);
  args.kv_lengths = cross_ ? call.memory_lengths : call.kv_lengths;
  if (cross_) args.key_packing = call.memory_packing;
  else args.relative = call.relative, args.last_keys = call.last_keys;
  if (shape_.dropout) args.dropout = shape_.dropout.of(context, call);
  args.dropout.packing = {};               // probabilities are numbered by sample, even if samples are packed
  if (args.dropout && shape_.texts) args.numbers = ProbabilityNumbers::independent_of_padding(shape_.heads);
  return args;
}

float Attention::scale() const {
  return shape_.scale > 0 ? shape_.scale : 1.0f / std::sqrt(static_cast<float>(shape_.head_size));
}

Rotary Attention::rotary(const LayerCall& call, const MatrixView& heads, bool inverse) const {
  Rotary args{.x = heads, .head_size = shape_.head_size, .rotated = shape_.rotary->rotated, .magnitude = shape_.rotary->magnitude,
              .positions = call.positions, .inverse = inverse};
  std::copy(shape_.rotary->frequencies.begin(), shape_.rotary->frequencies.end(), args.frequencies);
  std::copy(shape_.rotary->axes.begin(), shape_.rotary->axes.end(), args.axis);
  return args;
}

// q and k are adjacent columns, with heads of one size: one pass rotates both.
void Attention::rotate(const StepContext& context, const LayerCall& call, const Tensor& qk, bool inverse, const Tensor& amax) const {
  Rotary args = rotary(call, MatrixView(qk).columns(0, shape_.q_width() + shape_.kv_width()), inverse);
  args.amax = amax;
  context.ops.rotary(args, context.stream);
}

// If whole heads are rotated, the kernel also computes the largest magnitude of q and k; that of v needs another op.
void Attention::rotate_back(const UnitBackward& pass, const LayerCall& call, const Tensor& dqkv) const {
  const bool whole = !cross_ && (shape_.rotary->rotated == 0 || shape_.rotary->rotated == shape_.head_size) && shape_.kv_width() % 8 == 0;
  const Tensor amax = whole ? from_rows_.gradient_amax(pass) : Tensor{};
  rotate(pass.context, call, dqkv, true, amax);
  const MatrixView v = MatrixView(dqkv).columns(shape_.q_width() + shape_.kv_width(), whole ? shape_.kv_width() : 0);
  if (amax) pass.context.ops.raise_amax(v, amax, pass.context.stream);
}

Tensor Attention::normed(const UnitPass& pass, const LayerCall& call, const Tensor& qkv, Tensor rstd[2]) const {
  const StepContext& context = pass.context;
  const Norm* norms[] = {&*shape_.q_norm, &*shape_.k_norm};
  const int64_t widths[] = {shape_.q_width(), shape_.kv_width()};
  const Tensor qk = take(context, "queries and keys", qkv.dtype, {qkv.rows(), widths[0] + widths[1]});
  for (int i = 0; i < 2; ++i) {
    const int64_t first = i * widths[0];
    rstd[i] = take(context, "norm statistics", DType::f32, {qkv.rows(), widths[i] / norms[i]->size});
    const MatrixView y = MatrixView(qk).columns(first, widths[i]);
    HeadNormForward args{.x = MatrixView(qkv).columns(first, widths[i]), .size = norms[i]->size, .gamma = norms[i]->g(pass.flat),
                         .eps = norms[i]->eps, .rms = norms[i]->form, .y = y, .rstd = rstd[i], .rotary = {}};
    if (shape_.rotary) args.rotary = rotary(call, y, false);
    context.ops.head_norm_forward(args, context.stream);
  }
  return qk;
}

void Attention::norms_backward(const UnitBackward& pass, const LayerCall& call, const Tensor& qkv, const Tensor rstd[2],
                               const Tensor& dqkv) const {
  const Norm* norms[] = {&*shape_.q_norm, &*shape_.k_norm};
  const int64_t widths[] = {shape_.q_width(), shape_.kv_width()};
  for (int i = 0; i < 2; ++i) {
    const MatrixView dx = MatrixView(dqkv).columns(i * widths[0], widths[i]);
    HeadNormBackward args{.dy = dx, .x = MatrixView(qkv).columns(i * widths[0], widths[i]), .size = norms[i]->size,
                          .gamma = norms[i]->g(pass.flat), .rms = norms[i]->form, .rstd = rstd[i],
                          .dgamma = pass.gradient(norms[i]->gamma, {norms[i]->size}), .accumulate = pass.accumulate(), .dx = dx,
                          .rotary = {}};
    if (shape_.rotary) args.rotary = rotary(call, dx, true);
    pass.context.ops.head_norm_backward(args, pass.context.stream);
  }
}

// Computes attention(q, k, v) and all of `saved`.
void Attention::recompute(const UnitPass& pass, const LayerCall& call, Input input, SavedBlock& saved) const {
  const StepContext& context = pass.context;
  const DType type = input.x.dtype;
  const int64_t rows = input.x.rows();
  saved.attention = take(context, "attention output", type, {rows, shape_.q_width()});
  const RowGroups queries = groups(call);
  saved.lse = take(context, "attention log-sum-exp", DType::f32, {queries.count, shape_.heads, queries.max_rows});
  saved.qkv = take(context, "qkv", type, {rows, from_rows_.out});
  from_rows_.forward(pass, {.x = input.x, .y = saved.qkv}, input.later);
  if (input.owned) give(context, input.x);
  if (cross_) {
    saved.kv = take(context, "qkv", type, {call.memory.rows(), key_value_.out});
    UnitPass of_memory = pass;
    of_memory.rows = memory_rows(pass, call);
    key_value_.forward(of_memory, {.x = call.memory, .y = saved.kv});
    if (call.memory_cache) write_memory_cache(context, call, saved.kv);
  }
  const bool caches = call.cache && !cross_;
  Tensor qk, rstd[2];
  if (shape_.q_norm) qk = normed(pass, call, saved.qkv, rstd);
  else if (shape_.rotary && !caches) rotate(context, call, saved.qkv, false);
  if (caches) write_cache(context, call, qk, saved.qkv);
  context.ops.attention_forward(arguments(context, call, saved, qk), context.stream);
  for (Tensor* tensor : {&qk, &rstd[0], &rstd[1]}) give(context, *tensor);
}

Tensor Attention::forward(const UnitPass& pass, const LayerCall& call, Input input, const Output& output,
                          SavedBlock& saved, bool save) const {
  const StepContext& context = pass.context;
  const DType type = input.x.dtype;
  const bool decodes = (cross_ ? call.memory_cache : call.cache) && call.decoding->lengths;
  if (decodes) saved.attention = attend_to_cache(pass, call, input);
  else recompute(pass, call, input, saved);
  if (!save)
    for (Tensor* tensor : {&saved.qkv, &saved.kv, &saved.lse}) give(context, *tensor);
  const Tensor y = take(context, output.name, type, {saved.attention.rows(), output_.out});
  output_.forward(pass, {.x = saved.attention, .residual = output.residual, .y = y}, Fp8Seen::same);
  if (!save) give(context, saved.attention);
  return y;
}

// Caches values, and keys as attention reads them: from `normed` if queries and keys have norms, else from qkv, whose
// rotary part is rotated first.
void Attention::write_cache(const StepContext& context, const LayerCall& call, const Tensor& normed, const Tensor& qkv) const {
  const int64_t q = shape_.q_width(), kv = shape_.kv_width();
  CacheWrite args{.k = MatrixView(normed ? normed : qkv).columns(q, kv), .v = MatrixView(qkv).columns(q + kv, kv),
                  .slots = call.decoding->slots, .positions = call.decoding->positions, .cache = *call.cache};
  if (shape_.rotary && !normed) args.rotary = rotary(call, MatrixView(qkv).columns(0, q + kv), false);
  context.ops.cache_write(args, context.stream);
}

void Attention::write_memory_cache(const StepContext& context, const LayerCall& call, const Tensor& kv) const {
  const int64_t width = shape_.kv_width();
  context.ops.cache_write({.k = MatrixView(kv).columns(0, width), .v = MatrixView(kv).columns(width, width),
                           .slots = call.decoding->memory_slots, .positions = call.decoding->memory_positions,
                           .cache = *call.memory_cache},
                          context.stream);
}

AttentionDecode Attention::decode_arguments(const LayerCall& call, const MatrixView& q, const Tensor& out) const {
  const CacheCall& cache = *call.decoding;
  AttentionDecode args{.q = q, .heads = shape_.heads, .kv_heads = shape_.kv_heads, .head_size = shape_.head_size,
                       .scale = scale(), .window = shape_.window, .cap = shape_.cap, .relative = {},
                       .lengths = cross_ ? cache.memory_lengths : cache.lengths,
                       .sources = cross_ ? cache.memory_sources : cache.sources, .sharing = cache.sharing,
                       .cache = cross_ ? *call.memory_cache : *call.cache, .out = out};
  if (!cross_) args.relative = call.relative;
  return args;
}

// One row of each slot attends to the cached rows of its text, itself included, or of its memory. Returns [S, N D],
// which the caller must give back.
Tensor Attention::attend_to_cache(const UnitPass& pass, const LayerCall& call, Input input) const {
  const StepContext& context = pass.context;
  const DType type = input.x.dtype;
  const int64_t rows = input.x.rows();
  ScopedTensor qkv(context, "qkv", type, {rows, from_rows_.out});
  from_rows_.forward(pass, {.x = input.x, .y = qkv.get()});
  if (input.owned) give(context, input.x);
  Tensor normed_qk, rstd[2];
  if (shape_.q_norm) normed_qk = normed(pass, call, qkv, rstd);
  if (!cross_) write_cache(context, call, normed_qk, qkv);
  const Tensor qk = normed_qk ? normed_qk : qkv.get();
  const Tensor out = take(context, "attention output", type, {rows, shape_.q_width()});
  context.ops.attention_decode(decode_arguments(call, MatrixView(qk).columns(0, shape_.q_width()), out), context.stream);
  for (Tensor* tensor : {&normed_qk, &rstd[0], &rstd[1]}) give(context, *tensor);
  return out;
}

Block::InputGradient Attention::backward(UnitBackward& pass, const LayerCall& call, const OutputGradient& incoming,
                                         SavedBlock& saved) const {
  const StepContext& context = pass.context;
  const Tensor& dy = incoming.dy;
  const DType type = dy.dtype;
  const RowGroups queries = groups(call);
  const int64_t rows = dy.rows(), q = shape_.q_width(), kv = shape_.kv_width(), t = queries.max_rows;
  output_.weight_gradient(pass, dy, saved.attention, incoming.bias, Fp8Seen::same);
  const Tensor dqkv = take(context, "gradients of qkv", type, {rows, from_rows_.out});
  const Tensor dkv = cross_ ? take(context, "gradients of qkv", type, {call.memory.rows(), key_value_.out}) : Tensor{};
  const int64_t keys = cross_ ? call.memory_tokens : t;
  // Attention can sum the columns of q, k and v for the bias gradient only if they are one matrix that norm
  // and rotation have not changed, because biases of q and k are added before these.
  const bool as_made = !cross_ && !shape_.rotary && !shape_.q_norm;
  const BiasGradient bias = as_made ? from_rows_.bias_gradient(pass) : BiasGradient{};
  Tensor qk, rstd[2];
  if (shape_.q_norm) qk = normed(pass, call, saved.qkv, rstd);
  {
    ScopedTensor dattention(context, "gradients", type, {rows, q});
    output_.input_gradient(pass, {.dy = dy, .dx = dattention});
    ScopedTensor delta(context, "attention row sums", DType::f32, {queries.count, shape_.heads, t});
    context.ops.attention_backward({.forward = arguments(context, call, saved, qk), .dout = Heads::in(dattention, 0, t),
                                    .dq = Heads::in(dqkv, 0, t),
                                    .dk = cross_ ? Heads::in(dkv, 0, keys) : Heads::in(dqkv, q, t),
                                    .dv = cross_ ? Heads::in(dkv, kv, keys) : Heads::in(dqkv, q + kv, t),
                                    .delta = delta, .drelative = cross_ ? Tensor{} : call.relative_gradient,
                                    .dbias = bias.sums, .accumulate_dbias = bias.accumulate},
                                   context.stream);
  }
  give(context, qk);
  if (shape_.q_norm) norms_backward(pass, call, saved.qkv, rstd, dqkv);
  else if (shape_.rotary) rotate_back(pass, call, dqkv);
  for (Tensor* tensor : {&saved.qkv, &saved.kv, &saved.lse, &rstd[0], &rstd[1]}) give(context, *tensor);
  leave(pass, output_, std::exchange(saved.attention, {}));
  InputGradient result = input_gradient(pass, incoming, dqkv, bias);
  if (cross_) memory_backward(pass, call, dkv);
  return result;
}

// Returns how rows of the memory belong to samples, for adapters.
Dropout Attention::memory_rows(const UnitPass& pass, const LayerCall& call) const {
  Dropout rows = pass.rows;
  rows.rows_per_sample = call.memory_tokens;
  rows.packing = call.memory_packing;
  return rows;
}

// Takes ownership of dkv [B * P, 2 K D].
void Attention::memory_backward(UnitBackward& pass, const LayerCall& call, Tensor dkv) const {
  const Dropout of_layer = std::exchange(pass.rows, memory_rows(pass, call));
  key_value_.weight_gradient(pass, dkv, call.memory, {}, Fp8Seen::same);
  if (MemoryGradient& memory = *call.memory_gradient; memory.sum) {
    key_value_.input_gradient(pass, {.dy = dkv, .add = memory.started ? memory.sum : Tensor{}, .dx = memory.sum});
    memory.started = true;
  }
  pass.rows = of_layer;
  leave(pass, key_value_, dkv);
}

// Causal attention counts half of q k^T and of the product with v; a window counts the part inside of the window.
Block::Flops Attention::forward_flops(int64_t batch, double tokens, double memory_tokens) const {
  const double rows = static_cast<double>(batch) * tokens;
  const double group = shape_.group_rows > 0 ? std::min(tokens, static_cast<double>(shape_.group_rows)) : tokens;
  const double keys = cross_ ? memory_tokens : group;
  Flops flops;
  flops.products = 2 * rows * static_cast<double>(from_rows_.in * from_rows_.out + output_.in * output_.out);
  if (cross_)
    flops.memory_products =
        2 * static_cast<double>(batch) * memory_tokens * static_cast<double>(key_value_.in * key_value_.out);
  double seen = keys * (shape_.causal ? 0.5 : 1);
  if (const auto window = static_cast<double>(shape_.window); window > 0 && window < keys)
    seen = window - window * window / (2 * keys);
  flops.attention = 4 * rows * seen * static_cast<double>(shape_.q_width());
  return flops;
}

}  // namespace blipft
