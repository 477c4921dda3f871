// Implements the end of Gemma 3's tower; see average_merger.h.
#include "models/towers/average_merger.h"

#include <utility>

namespace blipft {

AverageMerger::AverageMerger(Unit& unit, const std::string& root, int64_t width, int64_t out, float eps, float init_std)
    : unit_(&unit),
      norm_(add_rms_norm(unit, root + "mm_soft_emb_norm", width, eps, {.offset = 1, .rounds_once = true})),
      from_rows_{out, width, unit.add(root + "mm_input_projection_weight", {width, out}, Init::normal(init_std))} {}

Tensor AverageMerger::forward(const StepContext& context, Tensor x, int64_t cells, bool save) {
  const UnitPass unit_pass = acquire(context, *unit_);
  const ObservedPhase phase(context, Phase::forward, *unit_);
  const DType type = x.dtype;
  Tensor means = take(context, "picture rows", type, {cells, norm_.size});
  context.ops.mean_rows(x, means, context.stream);
  give(context, x);
  NormResult normed = take_norm(context, norm_, unit_pass.flat, means);
  const Tensor y = take(context, "picture rows", type, {cells, from_rows_.in});
  UnitBackward pass(unit_pass, {});
  from_rows_.input_gradient(pass, {.dy = normed.y, .dx = y});
  pass.join();
  give(context, normed.y);
  release(context, *unit_);
  if (save) {
    means_ = means, normed_ = normed;
  } else {
    give(context, means);
    give(context, normed);
  }
  return y;
}

Tensor AverageMerger::backward(const StepContext& context, Tensor dy, int64_t patches) {
  const UnitPass unit_pass = acquire(context, *unit_);
  const ObservedPhase phase(context, Phase::backward, *unit_);
  UnitBackward pass(unit_pass, gradients(context, *unit_));
  ScopedTensor dnormed(context, "gradients", dy.dtype, means_.shape);
  from_rows_.forward(pass, {.x = dy, .y = dnormed});
  const Tensor normed = trained() ? take(context, "norm output", dy.dtype, means_.shape) : Tensor{};
  norm_.backward(pass, {.dy = dnormed, .x = means_, .rstd = normed_.rstd, .y = normed, .dx = dnormed});
  if (trained()) from_rows_.weight_gradient(pass, normed, dy);
  pass.keep(normed);
  pass.keep(dy);
  pass.join();
  give(context, normed_);
  give(context, means_);
  Tensor dx;
  if (patches > 0) {
    dx = take(context, "gradients", dy.dtype, {patches, norm_.size});
    context.ops.mean_rows_backward(dnormed, dx, context.stream);
  }
  release(context, *unit_);
  publish(context, *unit_);
  return dx;
}

}  // namespace blipft
