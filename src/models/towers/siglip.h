// SigLIP (Zhai et al. 2023) as Gemma 3's tower: pictures of one size in patches, learned positions, layers with norms before
// attention and MLP, a final norm, and the merger that makes a row of the text of each cell.
//
// Dimension legend: R patches, E hidden size, N cells, H hidden size of the language model.
#pragma once

#include "models/blocks/stack.h"
#include "models/towers/average_merger.h"
#include "models/towers/patch_embedding.h"
#include "models/towers/picture_tower.h"

namespace blipft {

struct SiglipShape {
  int64_t hidden = 768, inner = 3072, layers = 12, heads = 12, image = 224, patch = 16;
  int64_t merge = 1, out = 0;              // patches of a cell's side; H
  float norm_eps = 1e-6f, init_std = 0.02f;
  int64_t side() const { return image / patch; }
};

class Siglip : public PictureTower {
 public:
  /// Prefixes of its modules' names ("model.vision_tower.") and of the merger's.
  Siglip(const SiglipShape& shape, const std::string& root, const std::string& merger, const TowerBuilding& building);

  std::string description() const override { return concat("vision ", shape_.layers, " x ", shape_.hidden); }
  PatchInputs inputs() const override {
    return {.side = shape_.patch, .merge = shape_.merge, .picture_side = shape_.side() / shape_.merge};
  }
  bool trained() const override { return trains_layers() || merger_.trained(); }
  PictureRows forward(const StepContext& context, const MicroBatch& batch, bool save) override;
  void backward(const StepContext& context, const MicroBatch& batch, PictureRows gradients) override;
  std::optional<double> unit_flops(const Unit& unit, Phase phase, double rows, double pictures) const override;

 private:
  Stack make_layers(const std::string& root, const TowerBuilding& building) const;
  Layer make_layer(const std::string& name, Unit& unit, LoraBuilder& lora) const;
  /// Returns true if backward continues below the merger.
  bool trains_layers() const { return embedding_.trained() || layers_.trained() || norm_unit_->trainable; }

  SiglipShape shape_;
  PatchEmbedding embedding_;
  Stack layers_;
  Unit* norm_unit_;
  Norm norm_;
  AverageMerger merger_;
  // Saved for backward.
  Tensor out_;                             // [R, E], input of the norm
  NormResult normed_;                      // its statistics
};

}  // namespace blipft
