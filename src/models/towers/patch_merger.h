// The end of a tower: a norm, and an MLP with the exact GELU that computes one row of the text from the patches of a cell.
//
// Dimension legend: R patches, E their width, C patches of a cell, N = R / C cells, H width of the result.
#pragma once

#include "models/blocks/mlp.h"
#include "models/blocks/norm.h"

namespace blipft {

class PatchMerger {
 public:
  /// The norm is over each patch (size E) or over a cell (C E). first [., C E], last [H, .].
  PatchMerger(const Unit& unit, const Norm& norm, LinearLayer first, LinearLayer last)
      : unit_(&unit), norm_(norm), mlp_(unit, Activation::gelu, std::move(first), std::move(last)) {}

  bool trained() const { return unit_->trainable || unit_->adapter; }
  const Unit& unit() const { return *unit_; }
  /// Takes ownership of x [R, E]; returns [N, H], which the caller must give back. `save` keeps what backward needs.
  Tensor forward(const StepContext& context, const StreamRows& patches, Tensor x, bool save);
  /// Takes ownership of dy [N, H], publishes the unit. Returns the gradient of x, which the caller must give back.
  Tensor backward(const StepContext& context, const StreamRows& patches, Tensor dy);
  /// Operations of a forward over N rows; backward has as many for the input, and if trained for the weights.
  double forward_flops(double rows) const { return mlp_.forward_flops(1, rows, 0).products; }

 private:
  UnitPass open(const StepContext& context, const StreamRows& patches) const;
  Tensor in_norm(const Tensor& x) const { return x.view({x.numel() / norm_.size, norm_.size}); }
  Tensor in_cells(const Tensor& x) const { return x.view({x.numel() / mlp_.first().in, mlp_.first().in}); }

  const Unit* unit_;
  Norm norm_;
  Mlp mlp_;
  // Saved for backward.
  Tensor x_;                               // [R, E]
  NormResult normed_;                      // its statistics
  SavedBlock inner_;
};

}  // namespace blipft
