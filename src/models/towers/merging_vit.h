// A tower for pictures of any size (Qwen2.5-VL, Qwen3-VL): patches, 2-D rotary positions, layers with norms before attention
// and MLP, and a merger that makes a row of the text of each cell. Attention sees a picture, or in some layers a window of
// it. Further mergers read outputs of inner layers (DeepStack).
//
// Dimension legend: R patches, E hidden size, N cells, H hidden size of the language model.
#pragma once

#include <memory>

#include "models/blocks/attention.h"
#include "models/blocks/stack.h"
#include "models/towers/patch_embedding.h"
#include "models/towers/patch_merger.h"
#include "models/towers/picture_tower.h"

namespace blipft {

struct PositionTable;

struct MergingVitShape {
  int64_t hidden = 0, inner = 0, layers = 0, heads = 0;
  int64_t patch = 0, time = 1, merge = 1, out = 0;  // time: equal slices of a patch; out: H
  int64_t table = 0;                       // side of the table of positions, which is interpolated; 0: none
  int64_t window = 0;                      // side of the windows in cells; 0: none
  std::vector<int64_t> whole;              // layers that see the picture, if there are windows
  std::vector<int64_t> taps;               // layers whose outputs further mergers read, ascending
  bool rms = false;                        // RMSNorm and MLPs with gates and SiLU; else layer norm and gelu_tanh
  bool patch_bias = false;
  std::string merger_norm, merger_first, merger_last;  // names in a merger
  float init_std = 0.02f;
};

class MergingVit : public PictureTower {
 public:
  /// `root`: prefix of its modules' names ("model.visual.").
  MergingVit(const MergingVitShape& shape, const std::string& root, const TowerBuilding& building);

  std::string description() const override { return concat("vision ", shape_.layers, " x ", shape_.hidden); }
  PatchInputs inputs() const override { return {.side = shape_.patch, .merge = shape_.merge, .window = shape_.window}; }
  bool trained() const override;
  PictureRows forward(const StepContext& context, const MicroBatch& batch, bool save) override;
  void backward(const StepContext& context, const MicroBatch& batch, PictureRows gradients) override;
  std::optional<double> unit_flops(const Unit& unit, Phase phase, double rows, double pictures) const override;

 private:
  /// Layers, and the merger that reads the output of the last one.
  struct Segment {
    Stack layers;
    std::unique_ptr<PatchMerger> merger;
  };
  Layer make_layer(int64_t i, const std::string& name, Unit& unit, LoraBuilder& lora) const;
  Sublayer make_mlp(const std::string& name, Unit& unit, LoraBuilder& lora) const;
  Norm make_norm(Unit& unit, const std::string& name, int64_t size) const;
  std::unique_ptr<PatchMerger> make_merger(const std::string& name, Unit& unit, bool norm_of_cell, LoraBuilder& lora) const;
  RotaryPositions rotary() const;
  /// Returns true if backward continues through the output of this segment's layers.
  bool trains_through(size_t segment) const;

  MergingVitShape shape_;
  PatchEmbedding embedding_;
  std::vector<Segment> segments_;          // one for each of `taps`, and the rest
};

}  // namespace blipft
