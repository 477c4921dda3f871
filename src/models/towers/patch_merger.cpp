// Implements the end of a tower; see patch_merger.h.
#include "models/towers/patch_merger.h"

#include <utility>

namespace blipft {

// Dropout of adapters numbers cells.
UnitPass PatchMerger::open(const StepContext& context, const StreamRows& patches) const {
  UnitPass pass = acquire(context, *unit_);
  pass.rows = {.seed = context.seed, .sample_keys = patches.sample_keys,
               .rows_per_sample = patches.max_rows / (patches.rows / patches.cell_numbers.numel()),
               .row_numbers = patches.cell_numbers};
  return pass;
}

Tensor PatchMerger::forward(const StepContext& context, const StreamRows& patches, Tensor x, bool save) {
  UnitPass pass = open(context, patches);
  pass.keeps = save;
  const ObservedPhase phase(context, Phase::forward, *unit_);
  NormResult normed = take_norm(context, norm_, pass.flat, in_norm(x), mlp_.first().input_amax(pass));
  const Block::Input input{in_cells(std::exchange(normed.y, {})), true, norm_.rms() ? Fp8Seen::same : Fp8Seen::alike};
  const Tensor rows = mlp_.forward(pass, {}, input, {"picture rows", {}}, inner_, save);
  release(context, *unit_);
  if (save) {
    x_ = x, normed_ = normed;
  } else {
    give(context, x);
    give(context, normed);
  }
  return rows;
}

Tensor PatchMerger::backward(const StepContext& context, const StreamRows& patches, Tensor dy) {
  const UnitPass unit_pass = open(context, patches);
  const ObservedPhase phase(context, Phase::backward, *unit_);
  UnitBackward pass(unit_pass, gradients(context, *unit_));
  Block::InputGradient dx = mlp_.backward(pass, {}, {.dy = dy, .bias = {}, .input = {}, .add = {}}, inner_);
  leave(pass, mlp_.last(), dy);
  const Tensor x = in_norm(x_), of_x = dx.dx.view(x_.shape);
  const Tensor normed = mlp_.first().needs_input(pass) ? take(context, "norm output", x.dtype, x.shape) : Tensor{};
  norm_.backward(pass, {.dy = in_norm(dx.dx), .x = x, .mean = normed_.mean, .rstd = normed_.rstd, .y = normed, .dx = in_norm(dx.dx)});
  mlp_.weight_gradient(pass, dx, normed ? in_cells(normed) : Tensor{}, norm_.rms() ? Fp8Seen::same : Fp8Seen::alike);
  pass.join();
  give(context, normed_);
  give(context, x_);
  release(context, *unit_);
  publish(context, *unit_);
  return of_x;
}

}  // namespace blipft
