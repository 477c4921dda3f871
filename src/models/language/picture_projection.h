// A linear layer with a separate unit that projects the rows that one part of a model computes of pictures to the width of
// the language model.
//
// Dimension legend: M rows, D input width, H output width.
#pragma once

#include <optional>

#include "models/blocks/linear_layer.h"
#include "models/blocks/scoped_tensor.h"

namespace blipft {

class PictureProjection {
 public:
  Unit* unit = nullptr;
  LinearLayer layer;                       // [H, D], with bias

  /// Returns [M, H] for x [M, D]; the caller must give it back.
  Tensor forward(const StepContext& context, const Tensor& x) const;
  /// Takes ownership of dy [M, H] and x, publishes the unit. Returns the gradient of x, if requested, which the caller
  /// must give back.
  Tensor backward(const StepContext& context, Tensor dy, Tensor x, bool input_gradient) const;
  /// Like Model::unit_flops(), for `rows` rows.
  double flops(Phase phase, int64_t rows, bool input_gradient) const;
};

}  // namespace blipft
