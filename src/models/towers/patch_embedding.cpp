// Implements the first part of a tower; see patch_embedding.h.
#include "models/towers/patch_embedding.h"

#include <algorithm>

#include "blipft/patch_ops.h"

namespace blipft {

PatchEmbedding::PatchEmbedding(Unit& unit, const PatchEmbeddingShape& shape, const std::string& patch, const std::string& table,
                               DType compute)
    : shape_(shape), compute_(compute), unit_(&unit), product_{3 * shape.time * shape.patch * shape.patch, shape.hidden} {
  const Init init = Init::normal(shape.init_std);
  product_.weight = unit.add(patch + ".weight", shape.kernel, init);
  if (shape.bias)
    product_.bias = unit.add(patch + ".bias", {shape.hidden}, Init::constant(0), false, ParameterKind::norm_or_bias);
  if (shape.table > 0) table_ = unit.add(table + ".weight", {shape.table * shape.table, shape.hidden}, init);
}

// Returns the patches as the product reads them, which the caller must give back.
Tensor PatchEmbedding::values(const StepContext& context, const MicroBatch& batch) const {
  const Tensor rows = take(context, "patches", compute_, {batch.patches.rows, product_.in});
  const PixelStatistics& of = batch.pixel_statistics;
  PatchValues args{.pixels = batch.patches.pixels, .time = shape_.time, .of_bytes = of.of_bytes, .values = rows};
  std::copy_n(of.mean, 3, args.mean);
  std::copy_n(of.std, 3, args.std);
  context.ops.patch_values(args, context.stream);
  return rows;
}

PositionTable PatchEmbedding::positions(const MicroBatch& batch, const Tensor& flat, const Tensor& x) const {
  return {.positions = batch.patches.positions, .side = shape_.table, .interpolated = shape_.interpolated,
          .table = flat.part(table_, {shape_.table * shape_.table, shape_.hidden}), .x = x};
}

Tensor PatchEmbedding::forward(const StepContext& context, const MicroBatch& batch) const {
  BLIPFT_CHECK(batch.patches.rows > 0, "a micro-batch without patches, not even of padding");
  const Tensor x = take(context, "residual stream", compute_, {batch.patches.rows, shape_.hidden});
  const Tensor flat = context.units.acquire(*unit_);
  const ObservedPhase phase(context, Phase::forward, *unit_);
  Tensor rows = values(context, batch);
  product_.forward({context, flat, {}, {}}, {.x = rows, .y = x});
  if (table_ >= 0) context.ops.position_table_forward(positions(batch, flat, x), context.stream);
  give(context, rows);
  context.units.release(*unit_);
  return x;
}

void PatchEmbedding::backward(const StepContext& context, const MicroBatch& batch, Tensor dx) const {
  if (!trained()) return give(context, dx);
  const ObservedPhase phase(context, Phase::backward, *unit_);
  const UnitGradient gradient = context.units.gradient(*unit_);
  if (table_ >= 0) {
    PositionTable args = positions(batch, gradient.flat, dx);
    args.accumulate = gradient.accumulate;
    context.ops.position_table_backward(args, context.stream);
  }
  const Tensor rows = values(context, batch);
  // The pass has no weights, because the gradient of pictures is not computed.
  UnitBackward pass({context, {}, {}, {}}, {gradient, {}});
  product_.weight_gradient(pass, dx, rows);
  pass.keep(rows);
  pass.keep(dx);
  pass.join();
  context.units.publish(*unit_);
}

std::optional<double> PatchEmbedding::unit_flops(const Unit& unit, Phase phase, double patches) const {
  if (&unit != unit_) return std::nullopt;
  const double product = 2 * patches * static_cast<double>(product_.in * product_.out);
  return phase == Phase::forward || (phase == Phase::backward && trained()) ? product : 0;
}

}  // namespace blipft
