// The transformer layer of LLaMA: RMSNorm, rotary positions, grouped-query attention, SwiGLU.
//
// Dimension legend: B samples, T tokens of a sample (packed samples: at most), M rows in all, B * T unless packed,
// H hidden size, F inner size of the MLP, N heads of queries and K heads of keys and values of size D,
// W = (N + 2 K) * D columns of q, k and v.
#pragma once

#include <array>

#include "models/layer_stack.h"

namespace blipft {

/// x -> x + o(attention(rotary(q, k), v of norm1(x))) -> + down(silu(gate(m)) * up(m)), m = norm2(.)
class LlamaLayer {
 public:
  struct Shape {
    int64_t hidden = 0, heads = 0, kv_heads = 0, head_size = 0, inner = 0;
    std::array<float, Rotary::kMostFrequencies> frequencies{};
    int64_t q_width() const { return heads * head_size; }
    int64_t kv_width() const { return kv_heads * head_size; }
    int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  };
  /// What backward needs; norm outputs and the MLP's inner values are computed again from it.
  struct Saved {
    Tensor x;                              // [M, H]
    Tensor qkv;                            // [M, W], q and k after the rotation
    Tensor attention;                      // [M, N * D]
    Tensor lse;                            // f32 [B, N, T]
    Tensor middle;                         // [M, H], after the first residual
    NormResult norm1, norm2;               // the statistics alone
    Tensor gate_up;                        // [M, 2 F]
  };
  /// What varies from call to call.
  struct Call {
    int64_t batch = 0, tokens = 0;
    Tensor positions;                      // i32 [M]
    Tensor sample_keys;                    // i64 [B]
    Tensor kv_lengths;                     // i32 [B], optional
    Packing packing;                       // optional
  };

  Unit* unit = nullptr;
  Shape shape;
  Norm norm1, norm2;
  LinearLayer qkv, o, gate_up, down;

  /// See LayerStack.
  Tensor forward(const UnitPass& pass, const Call& call, Tensor x, Saved& saved, bool save) const;
  void recompute(const UnitPass& pass, const Call& call, Saved& saved) const;
  void give_all_but_input(const StepContext& context, Saved& saved) const;
  ResidualGradient backward(const UnitPass& unit_pass, const UnitGradients& gradients, const Call& call,
                            ResidualGradient dy, Saved& saved, const LlamaLayer* below) const;
  /// Operations over B samples of T tokens (their mean): of forward, of recompute(), and of backward, with the
  /// gradients of weights or without.
  double forward_flops(int64_t batch, double tokens) const;
  double recompute_flops(int64_t batch, double tokens) const;
  double backward_flops(int64_t batch, double tokens, bool trained) const;

 private:
  double product_flops(int64_t batch, double tokens) const;
  double attention_flops(int64_t batch, double tokens) const;
  AttentionForward attention_call(const Call& call, const Tensor& qkv_rows, const Tensor& out, const Tensor& lse) const;
  void rotate(const StepContext& context, const Call& call, const Tensor& qkv_rows, bool inverse) const;
  Tensor attention_forward(const UnitPass& pass, const Call& call, const Tensor& x, Saved& saved, bool save) const;
  Tensor gate_up_forward(const UnitPass& pass, const Tensor& middle, Saved& saved, bool save) const;
  Tensor mlp_backward(UnitBackward& pass, const Tensor& dy, Saved& saved) const;
  Tensor attention_backward(UnitBackward& pass, const Call& call, const Tensor& dmiddle, Saved& saved) const;
};

}  // namespace blipft
