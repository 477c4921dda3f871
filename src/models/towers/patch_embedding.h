// The first part of a tower: the values of patches, their product, and a table of positions.
//
// Dimension legend: R patches, E hidden size.
#pragma once

#include "models/blocks/linear_layer.h"
#include "models/blocks/scoped_tensor.h"

namespace blipft {

struct PatchEmbeddingShape {
  int64_t patch = 0, time = 1, hidden = 0; // side of a patch in pixels, its equal slices, E
  std::vector<int64_t> kernel;             // shape of the weight in files
  bool bias = true;
  int64_t table = 0;                       // side of the table of positions; 0: none
  bool interpolated = false;               // see PositionTable
  float init_std = 0.02f;
};

class PatchEmbedding {
 public:
  /// Adds "<patch>.weight", "<patch>.bias" and "<table>.weight" to the unit.
  PatchEmbedding(Unit& unit, const PatchEmbeddingShape& shape, const std::string& patch, const std::string& table, DType compute);

  bool trained() const { return unit_->trainable; }
  /// Returns the rows of the first layer [R, E], which the caller must give back.
  Tensor forward(const StepContext& context, const MicroBatch& batch) const;
  /// Takes ownership of dx [R, E], publishes a trained unit.
  void backward(const StepContext& context, const MicroBatch& batch, Tensor dx) const;
  /// Like Model::unit_flops(), for R patches; nullopt for another unit.
  std::optional<double> unit_flops(const Unit& unit, Phase phase, double patches) const;

 private:
  Tensor values(const StepContext& context, const MicroBatch& batch) const;
  PositionTable positions(const MicroBatch& batch, const Tensor& flat, const Tensor& x) const;

  PatchEmbeddingShape shape_;
  DType compute_;
  Unit* unit_;
  LinearLayer product_;
  int64_t table_ = -1;
};

}  // namespace blipft
