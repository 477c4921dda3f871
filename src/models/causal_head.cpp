// Head and loss in chunks; see causal_head.h.
#include "models/causal_head.h"

#include <algorithm>

namespace blipft {

namespace {
constexpr int64_t kLogitsOfChunk = int64_t{64} << 20;  // elements: 128 MiB of bf16
}

int64_t CausalHead::chunk_rows(int64_t rows) const {
  const int64_t most = std::max<int64_t>(1, kLogitsOfChunk / vocabulary);
  const int64_t chunks = (rows + most - 1) / most;
  return (rows + chunks - 1) / chunks;
}

// The embeddings' gradient has the head's part now; what the head does not touch gets its zeros.
void CausalHead::put_aside(const StepContext& context, const UnitGradient& gradient) const {
  if (!gradient.accumulate) {
    const int64_t end = weight + vocabulary * hidden, size = dtype_size(gradient.flat.dtype);
    const auto zero = [&](int64_t first, int64_t last) {
      if (first < last)
        context.device.zero(gradient.flat.part(first, {last - first}).data, (last - first) * size, context.stream);
    };
    zero(0, weight);
    zero(end, weight_unit->numel());
  }
  context.units.pause(*weight_unit);
}

Tensor CausalHead::forward_backward(const StepContext& context, Tensor x, RowBlocks predicting, const Tensor& labels,
                                    const Tensor& weight_of_label, const Tensor& loss) const {
  const DType type = x.dtype;
  const int64_t rows = labels.numel(), h = hidden;
  const Tensor flat = context.units.acquire(*unit);
  const bool tied = weight_unit != unit;
  const Tensor weight_flat = tied ? context.units.acquire(*weight_unit) : flat;
  const Tensor w = weight_flat.part(weight, {vocabulary, h});
  const ObservedPhase phase(context, Phase::loss, *unit);

  Taken picked(context, "head input", type, {rows, h});
  predicting.blocks = x, predicting.rows = picked;
  context.ops.pick_rows(predicting, context.stream);
  const Shape x_shape = x.shape;
  give(context, x);
  NormResult normed = take_norm(context, norm, flat, picked);
  Taken dnormed(context, "gradients", type, {rows, h});
  UnitGradient weight_gradient;
  if (weight_unit->trainable) weight_gradient = context.units.gradient(*weight_unit);
  const int64_t chunk = chunk_rows(rows);
  {
    Taken logits(context, "logits of a chunk", type, {chunk, vocabulary});
    Taken row_loss(context, "loss of rows", DType::f32, {rows});
    for (int64_t first = 0; first < rows; first += chunk) {
      const int64_t n = std::min(chunk, rows - first);
      const Tensor part = logits.get().row_range(0, n);
      const Tensor input = normed.y.row_range(first, n);
      context.ops.linear_forward({.x = input, .w = w, .y = part}, context.stream);
      context.ops.cross_entropy({.logits = part, .labels = labels.view({rows}).part(first, {n}),
                                 .weight = weight_of_label, .row_loss = row_loss.get().part(first, {n})},
                                context.stream);
      context.ops.linear_backward_input({.dy = part, .w = w, .dx = dnormed.get().row_range(first, n)}, context.stream);
      if (weight_unit->trainable)
        context.ops.linear_backward_weight({.dy = part, .x = input,
                                            .dw = weight_gradient.flat.part(weight, {vocabulary, h}),
                                            .accumulate = weight_gradient.accumulate || first > 0},
                                           context.stream);
    }
    context.ops.sum(row_loss, loss, true, context.stream);
  }
  if (tied) {
    context.units.release(*weight_unit);
    if (weight_unit->trainable) put_aside(context, weight_gradient);
  }

  UnitGradient gradient;
  if (unit->trainable) gradient = tied ? context.units.gradient(*unit) : weight_gradient;
  context.ops.norm_backward({.dy = dnormed, .x = picked, .mean = normed.mean, .rstd = normed.rstd,
                             .gamma = norm.g(flat), .dgamma = unit->trainable ? norm.g(gradient.flat) : Tensor{},
                             .dbeta = unit->trainable ? norm.b(gradient.flat) : Tensor{},
                             .accumulate = gradient.accumulate, .dx = dnormed},
                            context.stream);
  give(context, normed);
  context.units.release(*unit);
  if (unit->trainable) context.units.publish(*unit);
  Taken dx(context, "gradients of the residual stream", type, x_shape);
  predicting.blocks = dx, predicting.rows = dnormed;
  context.ops.spread_rows(predicting, context.stream);
  return dx.keep();
}

}  // namespace blipft
