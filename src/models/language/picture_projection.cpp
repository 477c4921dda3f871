// Implements the projection of picture rows; see picture_projection.h.
#include "models/language/picture_projection.h"

namespace blipft {

Tensor PictureProjection::forward(const StepContext& context, const Tensor& x) const {
  const UnitPass pass = acquire(context, *unit);
  const ObservedPhase phase(context, Phase::forward, *unit);
  const Tensor y = take(context, "picture rows", x.dtype, {x.rows(), layer.out});
  layer.forward(pass, {.x = x, .y = y});
  release(context, *unit);
  return y;
}

Tensor PictureProjection::backward(const StepContext& context, Tensor dy, Tensor x, bool input_gradient) const {
  const UnitPass unit_pass = acquire(context, *unit);
  const ObservedPhase phase(context, Phase::backward, *unit);
  UnitBackward pass(unit_pass, gradients(context, *unit));
  Tensor dx;
  if (input_gradient) {
    dx = take(context, "gradients", dy.dtype, {dy.rows(), layer.in});
    layer.input_gradient(pass, {.dy = dy, .dx = dx});
  }
  layer.weight_gradient(pass, dy, x, {}, Fp8Seen::same);
  pass.keep(dy);
  pass.keep(x);
  pass.join();
  release(context, *unit);
  publish(context, *unit);
  return dx;
}

double PictureProjection::flops(Phase phase, int64_t rows, bool input_gradient) const {
  const double product = 2 * static_cast<double>(rows) * static_cast<double>(layer.in * layer.out);
  if (phase == Phase::forward) return product;
  return phase == Phase::backward ? product * ((unit->trainable ? 1 : 0) + (input_gradient ? 1 : 0)) : 0;
}

}  // namespace blipft
