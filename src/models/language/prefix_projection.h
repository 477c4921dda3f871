// A linear layer that is a unit by itself: what one part of a model made, in the width of the next one. In models of
// vision and language what stands before the text.
//
// Dimension legend: M rows, D width of what is read, H of what comes out.
#pragma once

#include <optional>

#include "models/blocks/linear_layer.h"
#include "models/blocks/scoped_tensor.h"

namespace blipft {

class PrefixProjection {
 public:
  Unit* unit = nullptr;
  LinearLayer layer;                       // [H, D], with bias

  /// [M, H], the caller's, of x [M, D].
  Tensor forward(const StepContext& context, const Tensor& x) const;
  /// Takes dy [M, H] and x over, publishes the unit. The gradient of x, the caller's, where it is wanted.
  Tensor backward(const StepContext& context, Tensor dy, Tensor x, bool input_gradient) const;
  /// As Model::unit_flops, of so many rows.
  double flops(Phase phase, int64_t rows, bool input_gradient) const;
};

}  // namespace blipft
