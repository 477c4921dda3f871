// Implements head and loss in chunks; see language_head.h.
#include "models/language/language_head.h"

#include <algorithm>

namespace blipft {

namespace {
constexpr int64_t kLogitsOfChunk = int64_t{64} << 20;  // elements: 128 MiB of bf16
// Each chunk rounds the weight's gradient to its dtype. In bf16 one rounding of random sums has an error of 0.17 %, 16
// roundings 0.4 to 0.5 %, and 149 (65,536 rows of Qwen 2) 1.2 to 1.4 %; beyond 500, what all chunks add is lost.
constexpr int64_t kMaxChunks = 16;

// Describes the rows of `all` that predict labels as `rows`.
RowBlocks predicting(const StreamRows& text, const Tensor& all, const Tensor& rows) {
  return {.blocks = all, .rows = rows, .block_rows = text.max_rows, .offset = text.first_rows,
          .count = text.max_rows - text.first_rows - 1, .packing = text.packing};
}
}

void LanguageHead::add_output(Unit& embeddings, const std::string& tied_to, const std::string& name, int64_t hidden,
                              int64_t vocabulary, float init_std) {
  output = {.in = hidden, .out = vocabulary, .parts = {{0, vocabulary}}};
  weight_unit = tied_to.empty() ? unit : &embeddings;
  if (tied_to.empty()) {
    output.weight = unit->add(name + ".weight", {vocabulary, hidden}, Init::normal(init_std));
    return;
  }
  embeddings.add_alias(tied_to, name + ".weight");
  const auto& parameters = embeddings.parameters();
  const auto table = std::find_if(parameters.begin(), parameters.end(),
                                  [&](const Parameter& parameter) { return parameter.name == tied_to; });
  BLIPFT_CHECK(table != parameters.end(), "no parameter ", tied_to, " to tie ", name, " to");
  output.weight = table->offset;
}

// The input's gradient is always computed; the weight's if it is trained.
double LanguageHead::flops(int64_t batch_size, double text_rows) const {
  const double forward =
      2 * static_cast<double>(batch_size) * (text_rows - 1) * static_cast<double>(output.in * output.out);
  return forward * (weight_unit->trainable ? 3 : 2);
}

int64_t LanguageHead::chunk_rows(int64_t rows, bool rounded) const {
  const int64_t minimum = rounded ? (rows + kMaxChunks - 1) / kMaxChunks : 1;
  const int64_t maximum = std::max(minimum, kLogitsOfChunk / output.out);
  const int64_t chunks = (rows + maximum - 1) / maximum;
  return (rows + chunks - 1) / chunks;
}

// The embeddings' gradient contains the head's contribution now. The embeddings add their own at the end of backward,
// so everything that the head does not write must start as zero.
void LanguageHead::pause_tied_gradient(const StepContext& context, const UnitGradient& gradient) const {
  if (!gradient.accumulate) {
    const int64_t end = output.weight + output.out * output.in, size = dtype_size(gradient.flat.dtype);
    const auto zero = [&](int64_t first, int64_t last) {
      if (first < last)
        context.device.zero(gradient.flat.part(first, {last - first}).data, (last - first) * size, context.stream);
    };
    zero(0, output.weight);
    zero(end, weight_unit->numel());
  }
  context.units.pause(*weight_unit);
}

LanguageHead::Opened LanguageHead::open(const StepContext& context, const MicroBatch& batch) const {
  UnitPass pass = acquire(context, *unit);
  const UnitWeights flat = pass.flat;
  if (tied()) pass.flat = context.units.acquire(*weight_unit);
  pass.rows = {.seed = context.seed, .sample_keys = batch.sample_keys, .rows_per_sample = batch.text.max_rows};
  return {flat, pass};
}

// Applies dropout and scale in place, to rows that predict the batch's labels or to their gradient.
void LanguageHead::drop_and_scale(const StepContext& context, const Tensor& rows, const MicroBatch& batch) const {
  if (dropout && context.training) {
    BLIPFT_CHECK(batch.text.label_rows, "dropout before a head needs StreamInputs::label_rows");
    context.ops.dropout_add({.x = rows,
                             .dropout = {.p = dropout.p, .site = dropout.site, .seed = context.seed,
                                         .sample_keys = batch.sample_keys, .rows_per_sample = batch.text.max_rows,
                                         .packing = {}, .row_numbers = batch.text.label_rows.view({rows.rows()})},
                             .y = rows},
                            context.stream);
  }
  if (scale != 1) context.ops.scale(rows, scale, context.stream);
}

LanguageHead::Input LanguageHead::input(const StepContext& context, const UnitWeights& flat, Tensor x,
                                        const MicroBatch& batch) const {
  const int64_t rows = batch.text.labels.numel();
  ScopedTensor picked(context, "head input", x.dtype, {rows, output.in});
  context.ops.pick_rows(predicting(batch.text, x, picked), context.stream);
  give(context, x);
  const NormResult normed = take_norm(context, norm, flat, picked);
  drop_and_scale(context, normed.y, batch);
  return {picked.release(), normed};
}

// Calls `backward` with each chunk's pass, its gradient of the logits [n, V] and its first row. `rounded`: a gradient
// is added up in bf16.
void LanguageHead::loss_in_chunks(
    const UnitPass& pass, const Tensor& normed, const MicroBatch& batch, bool rounded,
    const std::function<void(const UnitPass&, const Tensor&, int64_t)>& backward) const {
  const StepContext& context = pass.context;
  const Tensor labels = batch.text.labels.view({normed.rows()});
  const int64_t rows = normed.rows(), chunk = chunk_rows(rows, rounded);
  ScopedTensor logits(context, "logits of a chunk", normed.dtype, {chunk, output.out});
  Tensor row_loss = batch.row_loss;
  if (!row_loss) row_loss = take(context, "loss of rows", DType::f32, {rows});
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t n = std::min(chunk, rows - first);
    const Tensor part = logits.get().row_range(0, n);
    UnitPass of_chunk = pass;
    if (batch.text.label_rows) of_chunk.rows.row_numbers = batch.text.label_rows.part(first, {n});
    output.forward(of_chunk, {.x = normed.row_range(first, n), .y = part});
    context.ops.cross_entropy({.cap = cap, .logits = part, .labels = labels.part(first, {n}),
                               .weight = batch.loss_weight, .row_loss = row_loss.part(first, {n})},
                              context.stream);
    if (backward) backward(of_chunk, part, first);
  }
  context.ops.sum(row_loss, batch.loss, true, context.stream);
  if (!batch.row_loss) give(context, row_loss);
}

void LanguageHead::forward_loss(const StepContext& context, Tensor x, const MicroBatch& batch) const {
  const Opened opened = open(context, batch);
  const ObservedPhase phase(context, Phase::loss, *unit);
  Input rows = input(context, opened.flat, x, batch);
  give(context, rows.picked);
  loss_in_chunks(opened.weight, rows.normed.y, batch, false, {});
  give(context, rows.normed);
  if (tied()) context.units.release(*weight_unit);
  release(context, *unit);
}

Tensor LanguageHead::logits(const StepContext& context, Tensor x, const Tensor& picked) const {
  UnitPass pass = acquire(context, *unit);
  const UnitWeights flat = pass.flat;
  if (tied()) pass.flat = context.units.acquire(*weight_unit);
  const ObservedPhase phase(context, Phase::loss, *unit);
  if (picked) {
    const Tensor rows = take(context, "head input", x.dtype, {picked.rows(), output.in});
    context.ops.gather_rows(x, picked.view({picked.rows()}), rows, context.stream);
    give(context, x);
    x = rows;
  }
  NormResult normed = take_norm(context, norm, flat, x);
  const Tensor y = take(context, "logits", x.dtype, {x.rows(), output.out});
  give(context, x);
  if (scale != 1) context.ops.scale(normed.y, scale, context.stream);
  output.forward(pass, {.x = normed.y, .y = y});
  if (cap > 0) context.ops.cap(y, cap, context.stream);
  give(context, normed);
  if (tied()) context.units.release(*weight_unit);
  release(context, *unit);
  return y;
}

Tensor LanguageHead::forward_backward(const StepContext& context, Tensor x, const MicroBatch& batch) const {
  const DType type = x.dtype;
  const Shape x_shape = x.shape;
  const int64_t rows = batch.text.labels.numel(), h = output.in;
  const auto [flat, weight] = open(context, batch);
  const ObservedPhase phase(context, Phase::loss, *unit);
  auto [picked, normed] = input(context, flat, x, batch);
  ScopedTensor dnormed(context, "gradients", type, {rows, h});
  UnitGradients weight_gradients;
  if (weight_unit->trainable) weight_gradients.own = context.units.gradient(*weight_unit);
  if (unit->adapter) weight_gradients.adapter = context.units.gradient(*unit->adapter);
  const auto backward = [&, normed_y = normed.y](const UnitPass& of_chunk, const Tensor& dlogits, int64_t first) {
    const int64_t n = dlogits.rows();
    // The chunks share the logits' memory, so the weight's gradient must run in order, in the main stream.
    UnitBackward pass(of_chunk, weight_gradients, UnitBackward::WeightStream::main, first > 0);
    output.input_gradient(pass, {.dy = dlogits, .dx = dnormed.get().row_range(first, n)});
    output.weight_gradient(pass, dlogits, normed_y.row_range(first, n));
    pass.join();
  };
  const auto in_bf16 = [](const std::optional<UnitGradient>& sum) { return sum && sum->flat.dtype == DType::bf16; };
  loss_in_chunks(weight, normed.y, batch, in_bf16(weight_gradients.own) || in_bf16(weight_gradients.adapter), backward);
  if (tied()) {
    context.units.release(*weight_unit);
    if (weight_unit->trainable) pause_tied_gradient(context, *weight_gradients.own);
  }

  drop_and_scale(context, dnormed, batch);
  UnitGradient gradient;
  if (unit->trainable) gradient = tied() ? context.units.gradient(*unit) : *weight_gradients.own;
  context.ops.norm_backward({.dy = dnormed, .x = picked, .mean = normed.mean, .rstd = normed.rstd,
                             .gamma = norm.g(flat), .dgamma = unit->trainable ? norm.g(gradient.flat) : Tensor{},
                             .dbeta = unit->trainable ? norm.b(gradient.flat) : Tensor{},
                             .accumulate = gradient.accumulate, .rms = norm.form, .dx = dnormed},
                            context.stream);
  give(context, normed);
  release(context, *unit);
  publish(context, *unit);
  ScopedTensor dx(context, "gradients of the residual stream", type, x_shape);
  context.ops.spread_rows(predicting(batch.text, dx, dnormed), context.stream);
  give(context, picked);
  return dx.release();
}

}  // namespace blipft
