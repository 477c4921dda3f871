// The vision tower (ViT): a picture in patches, a class token, learned positions, layers with norms before, a norm at the
// end.
//
// Dimension legend: B samples; P patches of a picture, V = 1 + P picture tokens, E hidden size.
#pragma once

#include <functional>

#include "models/blocks/stack.h"

namespace blipft {

struct VitShape {
  int64_t hidden = 1408, inner = 6144, layers = 39, heads = 16, image = 224, patch = 14;
  float norm_eps = 1e-6f, attention_dropout = 0;  // attention_dropout: not supported, but where dropout is off
  bool qkv_bias = true;
  float init_std = 0.02f;
  int64_t patches() const { return (image / patch) * (image / patch); }
  int64_t tokens() const { return 1 + patches(); }
};

class Vit {
 public:
  using AddUnit = std::function<Unit&(const std::string& name)>;
  /// `root`: how the names of its tensors begin ("vision_model.").
  Vit(const VitShape& shape, const std::string& root, const ModelSettings& settings, const AddUnit& add_unit);

  /// The normed tokens [B * V, E], the caller's; `save` keeps what backward needs.
  Tensor forward(const StepContext& context, const MicroBatch& batch, bool save);
  /// Takes dy [B * V, E] over, publishes all units.
  void backward(const StepContext& context, const MicroBatch& batch, Tensor dy);
  /// As Model::unit_flops, for a tower that is trained as a whole or not at all; nothing for a unit that is not its own.
  std::optional<double> unit_flops(const Unit& unit, Phase phase, int64_t batch_size) const;

 private:
  void add_embeddings(const std::string& root, const AddUnit& add_unit);
  void add_layer(const std::string& name, Unit& unit);
  LayerCall call(const MicroBatch& batch) const;
  Tensor patches_of(const StepContext& context, const MicroBatch& batch) const;
  Tensor embed_forward(const StepContext& context, const MicroBatch& batch) const;
  void embed_backward(const StepContext& context, const MicroBatch& batch, Tensor dx) const;

  VitShape shape_;
  DType compute_;
  Unit* embeddings_ = nullptr;
  int64_t class_embedding_ = -1, positions_ = -1;
  LinearLayer patch_embedding_;
  Stack layers_;
  Unit* norm_unit_ = nullptr;
  Norm norm_;
  // Saved for backward.
  Tensor out_;                             // [B * V, E] before the norm
  NormResult normed_;                      // its statistics
};

}  // namespace blipft
