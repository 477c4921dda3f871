// The end of Gemma 3's tower: the average of a cell's patches, an RMSNorm, and a product.
//
// Dimension legend: R patches, E their width, N cells, H width of the result.
#pragma once

#include "models/blocks/norm.h"

namespace blipft {

class AverageMerger {
 public:
  /// `root`: prefix of the names ("model.multi_modal_projector.").
  AverageMerger(Unit& unit, const std::string& root, int64_t width, int64_t out, float eps, float init_std);

  bool trained() const { return unit_->trainable; }
  const Unit& unit() const { return *unit_; }
  /// Takes ownership of x [R, E]; returns [N, H], which the caller must give back. `save` keeps what backward needs.
  Tensor forward(const StepContext& context, Tensor x, int64_t cells, bool save);
  /// Takes ownership of dy [N, H], publishes the unit. Returns the gradient of x, if `patches`, R, is not 0.
  Tensor backward(const StepContext& context, Tensor dy, int64_t patches);
  /// Operations of a forward over N cells; backward has as many for the input, and if trained for the weights.
  double forward_flops(double cells) const { return 2 * cells * static_cast<double>(from_rows_.in * from_rows_.out); }

 private:
  Unit* unit_;
  Norm norm_;
  /// Files hold the weight as [E, H], which is that of the layer from the result to the normalized cells: its gradient of
  /// the input is the product here, and its output the gradient.
  LinearLayer from_rows_;
  // Saved for backward.
  Tensor means_;                           // [N, E]
  NormResult normed_;                      // its statistics
};

}  // namespace blipft
