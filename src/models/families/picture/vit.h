// The vision tower (ViT): patches of a picture, a class token, learned positions, layers with norms before attention
// and MLP, and a final norm.
//
// Dimension legend: B samples; P patches of a picture, V = 1 + P picture tokens, E hidden size.
#pragma once

#include <functional>

#include "models/blocks/stack.h"

namespace blipft {

struct VitShape {
  int64_t hidden = 1408, inner = 6144, layers = 39, heads = 16, image = 224, patch = 14;
  float norm_eps = 1e-6f, attention_dropout = 0;  // attention_dropout: must be 0 unless dropout is off
  bool qkv_bias = true;
  float init_std = 0.02f;
  int64_t patches() const { return (image / patch) * (image / patch); }
  int64_t tokens() const { return 1 + patches(); }
};

class Vit {
 public:
  using AddUnit = std::function<Unit&(const std::string& name)>;
  /// `root`: prefix of its tensors' names ("vision_model.").
  Vit(const VitShape& shape, const std::string& root, const ModelSettings& settings, const AddUnit& add_unit);

  /// Returns the normalized tokens [B * V, E], owned by the caller; `save` keeps what backward needs.
  Tensor forward(const StepContext& context, const MicroBatch& batch, bool save);
  /// Takes ownership of dy [B * V, E], publishes all units.
  void backward(const StepContext& context, const MicroBatch& batch, Tensor dy);
  /// Like Model::unit_flops(), for a tower that is trained as a whole or not at all; nullopt for other units.
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
  Tensor out_;                             // [B * V, E], input of the norm
  NormResult normed_;                      // its statistics
};

}  // namespace blipft
