// The pre-norm transformer layer of ViT and OPT.
//
// Dimension legend: B samples, T tokens of a sample (packed samples: at most), M rows in all, B * T unless packed,
// H hidden size, F inner size of the MLP, N heads of size D, H = N * D.
#pragma once

#include "models/layer_stack.h"

namespace blipft {

/// x -> x + drop(proj(attention(norm1(x)))) -> + drop(fc2(act(fc1(norm2(.))))): the layer of ViT and of OPT.
class PreNormLayer {
 public:
  struct Shape {
    int64_t hidden = 0, heads = 0, inner = 0;
    Activation activation = Activation::gelu;
    bool causal = false;
    float dropout = 0;                     // of both sublayer outputs
  };
  /// What backward needs; norm outputs and activations are computed again from it.
  struct Saved {
    Tensor x;                              // [M, H]
    Tensor qkv;                            // [M, 3H]
    Tensor attention;                      // [M, H]
    Tensor lse;                            // f32 [B, N, T]
    Tensor middle;                         // [M, H], after the first residual
    NormResult norm1, norm2;               // the statistics alone
    // [M, F]: gelu: before the activation; relu: after it, or its signs alone, u8 [ceil(M F / 8)], where no weight
    // gradient reads it
    Tensor inner;
  };
  /// What varies from call to call.
  struct Call {
    int64_t batch = 0, tokens = 0;
    Tensor kv_lengths;                     // i32 [B], optional
    Tensor sample_keys;                    // i64 [B]
    Packing packing;                       // optional
  };

  Unit* unit = nullptr;
  Shape shape;
  Norm norm1, norm2;
  LinearLayer qkv, projection, fc1, fc2;
  uint32_t dropout_site = 0;               // two consecutive numbers

  /// Takes x over (it ends in `saved`, or is given back when `save` is false); the result is the caller's.
  Tensor forward(const UnitPass& pass, const Call& call, Tensor x, Saved& saved, bool save) const;
  /// Computes the rest of what backward needs again from saved.x.
  void recompute(const UnitPass& pass, const Call& call, Saved& saved) const;
  /// Leaves what recompute() starts from.
  void give_all_but_input(const StepContext& context, Saved& saved) const;
  /// Takes dy and what was saved over; the result, of x, is the caller's. `below`, the layer that made x, is null for
  /// the first one: the result holds what its backward begins with.
  ResidualGradient backward(const UnitPass& unit_pass, const UnitGradients& gradients, const Call& call,
                            ResidualGradient dy, Saved& saved, const PreNormLayer* below) const;
  /// Operations of one forward over B samples of T tokens (their mean), and of recompute().
  double forward_flops(int64_t batch, double tokens) const;
  double recompute_flops(int64_t batch, double tokens) const;

 private:
  struct Middle {
    Tensor sum;                            // [M, H], x and the attention's output
    NormResult normed;                     // norm2 of it
  };
  AttentionForward attention_call(const Call& call, const Tensor& qkv_rows, const Tensor& out, const Tensor& lse) const;
  Dropout dropout(const StepContext& context, const Call& call, uint32_t which) const;
  /// What backward needs of relu's output, which is taken over: itself, or its signs.
  Tensor keep_activated(const StepContext& context, Taken& activated) const;
  Middle attention_forward(const UnitPass& pass, const Call& call, const Tensor& x, Saved& saved, bool save) const;
  Tensor mlp_forward(const UnitPass& pass, const Call& call, const Middle& middle, Saved& saved, bool save) const;
  ResidualGradient mlp_backward(UnitBackward& pass, const Call& call, const ResidualGradient& incoming,
                                Saved& saved) const;
  ResidualGradient attention_backward(UnitBackward& pass, const Call& call, const ResidualGradient& incoming,
                                      Saved& saved, const PreNormLayer* below) const;
};

using PreNormStack = LayerStack<PreNormLayer>;

}  // namespace blipft
