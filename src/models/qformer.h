// The Q-Former: learned queries that attend to themselves and, in every few layers, to the picture.
//
// Dimension legend: B samples, Q queries of a sample, R = B * Q rows, D hidden size, F inner size, P picture tokens of
// a sample, E picture hidden size, N heads.
#pragma once

#include <vector>

#include "models/blocks.h"

namespace blipft {

struct QFormerShape {
  int64_t hidden = 768, heads = 12, inner = 3072, layers = 12, cross_frequency = 2, encoder_hidden = 1408, queries = 32;
  float norm_eps = 1e-12f, hidden_dropout = 0.1f, attention_dropout = 0.1f;
  Activation activation = Activation::gelu;
};

/// One post-norm layer: self-attention, cross-attention (some layers), MLP.
class QFormerLayer {
 public:
  struct Attention {
    bool present = false, cross = false;
    LinearLayer qkv;                       // self: [3D, D]
    LinearLayer query, key_value;          // cross: [D, D], [2D, E]
    LinearLayer output;
    Norm norm;
  };
  /// What the norm that ends a sublayer read: x + drop(output).
  struct SavedNorm {
    Tensor sum, mean, rstd;                // [R, D], f32 [R]
  };
  struct SavedAttention {
    Tensor q, kv;                          // self: q is [R, 3D] (q, k, v), kv absent; cross: [R, D], [B * P, 2D]
    Tensor out, lse;                       // [R, D], f32 [B, N, Q]
    SavedNorm norm;
  };
  struct Saved {
    Tensor x;                              // [R, D]
    SavedAttention self, cross;
    Tensor inner;                          // [R, F], before gelu
    SavedNorm norm;                        // the MLP's
  };
  struct Call {
    int64_t batch = 0, picture_tokens = 0;
    Tensor picture;                        // [B * P, E]
    Tensor sample_keys;
  };
  /// The gradient of the picture, which all layers with cross-attention add to.
  struct PictureGradient {
    Tensor sum;                            // [B * P, E], absent when nobody wants it
    bool started = false;                  // else it has yet to be written
  };

  Unit* unit = nullptr;
  QFormerShape shape;
  Attention self, cross;
  LinearLayer fc1, fc2;
  Norm norm;
  uint32_t dropout_site = 0;               // five consecutive numbers

  Tensor forward(const UnitPass& pass, const Call& call, Tensor x, Saved& saved, bool save) const;
  Tensor backward(const UnitPass& unit_pass, const UnitGradients& gradients, const Call& call, Tensor dy, Saved& saved,
                  PictureGradient& dpicture) const;
  void drop_all_but_input(const StepContext& context, Saved& saved) const;
  /// Operations of one forward over B samples, each with a picture of P tokens.
  double forward_flops(int64_t batch, int64_t picture_tokens) const;

 private:
  Dropout dropout(const StepContext& context, const Call& call, uint32_t which, float p) const;
  Dropout output_dropout(const StepContext& context, const Call& call, const Attention& block) const;
  AttentionForward attention_call(const StepContext& context, const Call& call, const Attention& block,
                                  const SavedAttention& saved) const;
  Tensor attention_forward(const UnitPass& pass, const Call& call, const Attention& block, const Tensor& x,
                           SavedAttention& saved) const;
  Tensor attention_backward(UnitBackward& pass, const Call& call, const Attention& block, const Tensor& x, Tensor dy,
                            SavedAttention& saved, PictureGradient& dpicture) const;
  Tensor norm_backward(UnitBackward& pass, const Norm& of, const SavedNorm& saved, const Dropout& drop,
                       const BiasGradient& output_bias, const Tensor& dy) const;
  Tensor mlp_forward(const UnitPass& pass, const Call& call, const Tensor& x, Saved& saved) const;
  Tensor mlp_backward(UnitBackward& pass, const Call& call, const Tensor& x, Tensor dy, Saved& saved) const;
  Tensor normed_again(const UnitPass& pass, const Attention& block, const SavedAttention& saved) const;
  SavedNorm take_saved_norm(const StepContext& context, DType type, int64_t rows) const;
  void give_norm(const StepContext& context, SavedNorm& saved) const;
  void give_attention(const StepContext& context, SavedAttention& saved) const;
};

class QFormer {
 public:
  QFormerShape shape;
  Unit* embeddings = nullptr;              // query tokens and the input norm
  int64_t query_tokens = -1;               // offset of [Q, D]
  Norm input_norm;
  std::vector<QFormerLayer> layers;
  int64_t checkpointed = 0;
  uint32_t dropout_site = 0;               // of the input

  Tensor forward(const StepContext& context, const QFormerLayer::Call& call, bool save);
  /// Takes dy over; fills dpicture when it is there.
  void backward(const StepContext& context, const QFormerLayer::Call& call, Tensor dy, const Tensor& dpicture);

 private:
  Dropout input_dropout(const StepContext& context, const QFormerLayer::Call& call) const;
  std::vector<QFormerLayer::Saved> saved_;
};

}  // namespace blipft
