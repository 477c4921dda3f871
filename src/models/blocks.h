// Pieces that model families share: parameter handles, and the pre-norm transformer layer of ViT and OPT.
//
// Dimension legend: B samples, T tokens of a sample (packed samples: at most), M rows in all, B * T unless packed,
// H hidden size, F inner size of the MLP, N heads of size D, H = N * D.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blipft/model.h"
#include "models/linear_layer.h"

namespace blipft {

/// A layer norm's place in its unit's flat buffer.
struct Norm {
  int64_t size = 0;
  int64_t gamma = -1, beta = -1;
  float eps = 1e-5f;
  Tensor g(const Tensor& flat) const { return flat.part(gamma, {size}); }
  Tensor b(const Tensor& flat) const { return flat.part(beta, {size}); }
  /// `args` without the parameters and their gradients; beta is filled in where y is wanted.
  void backward(const UnitBackward& pass, NormBackward args) const;
};

/// Adds "<name>.weight" and, if wanted, "<name>.bias" to the unit.
LinearLayer add_linear(Unit& unit, const std::string& name, int64_t in, int64_t out, bool bias, float init_std);
/// One of several linear layers over one input.
struct PackedLinear {
  std::string name;
  int64_t out = 0;
};
/// Adds the weights of several linear layers over one input as one matrix, then their biases as one vector.
LinearLayer add_packed_linear(Unit& unit, const std::vector<PackedLinear>& layers, int64_t in, bool bias,
                              float init_std);
/// The same for layers of equal width.
LinearLayer add_packed_linear(Unit& unit, const std::vector<std::string>& names, int64_t in, int64_t out_each,
                              bool bias, float init_std);
Norm add_norm(Unit& unit, const std::string& name, int64_t size, float eps);

/// A tensor taken from the arena for the length of a scope (or until give()).
class Taken {
 public:
  Taken(const StepContext& context, const char* name, DType dtype, const Shape& shape, Owner owner = Owner::activations)
      : arena_(&context.arena), tensor_(arena_->take(owner, name, dtype, shape)) {}
  ~Taken() { give(); }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  void give() {
    if (tensor_) arena_->give(tensor_);
    tensor_ = {};
  }
  /// The caller becomes responsible for giving it back.
  Tensor keep() {
    Tensor tensor = tensor_;
    tensor_ = {};
    return tensor;
  }
  operator const Tensor&() const { return tensor_; }
  operator MatrixView() const { return tensor_; }
  const Tensor& get() const { return tensor_; }

 private:
  Arena* arena_;
  Tensor tensor_;
};

/// Gives `tensor` back to the arena and forgets it; absent tensors are fine.
void give(const StepContext& context, Tensor& tensor);

/// y = norm(x) with statistics into fresh tensors.
struct NormResult {
  Tensor y, mean, rstd;                    // [M, H], f32 [M], f32 [M]
};
NormResult take_norm(const StepContext& context, const Norm& norm, const Tensor& flat, const Tensor& x);
void give(const StepContext& context, NormResult& result);

/// The gradient of the residual stream on its way down, and what its last writer made of it for the linear layer whose
/// output was added there: the layer below's fc2, or a projection.
struct ResidualGradient {
  Tensor dy;                               // [M, H]
  Tensor dropped;                          // [M, H], optional: dy through the dropout of that layer's output
  BiasGradient bias;                       // of that layer, as the writer was handed it
  const Tensor& of_output() const { return dropped ? dropped : dy; }
};

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
    Tensor inner;                          // [M, F]: gelu: before the activation; relu: after it
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
  Tensor forward(const StepContext& context, const Tensor& flat, const Call& call, Tensor x, Saved& saved,
                 bool save) const;
  /// Computes the rest of what backward needs again from saved.x.
  void recompute(const StepContext& context, const Tensor& flat, const Call& call, Saved& saved) const;
  /// Leaves what recompute() starts from.
  void give_all_but_input(const StepContext& context, Saved& saved) const;
  /// Takes dy and what was saved over; the result, of x, is the caller's. `gradient` is null for a frozen unit.
  /// `below`, the layer that made x, is null for the first one: the result holds what its backward begins with.
  ResidualGradient backward(const StepContext& context, const Tensor& flat, const UnitGradient* gradient,
                            const Call& call, ResidualGradient dy, Saved& saved, const PreNormLayer* below) const;
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
  Middle attention_forward(const UnitPass& pass, const Call& call, const Tensor& x, Saved& saved, bool save) const;
  Tensor mlp_forward(const UnitPass& pass, const Call& call, const Middle& middle, Saved& saved, bool save) const;
  ResidualGradient mlp_backward(UnitBackward& pass, const Call& call, const ResidualGradient& incoming,
                                Saved& saved) const;
  ResidualGradient attention_backward(UnitBackward& pass, const Call& call, const ResidualGradient& incoming,
                                      Saved& saved, const PreNormLayer* below) const;
};

/// A stack of pre-norm layers with activation checkpointing.
class PreNormStack {
 public:
  std::vector<PreNormLayer> layers;
  int64_t checkpointed = 0;                // the first layers recompute

  Tensor forward(const StepContext& context, const PreNormLayer::Call& call, Tensor x, bool save);
  Tensor backward(const StepContext& context, const PreNormLayer::Call& call, Tensor dy);

 private:
  std::vector<PreNormLayer::Saved> saved_;
};

}  // namespace blipft
