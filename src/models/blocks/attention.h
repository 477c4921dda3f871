// Attention: self attention of a stack's rows, or cross attention to a memory. Options: grouped heads, causal mask,
// window, rotary positions, norms of queries and keys.
//
// Norms of queries and keys precede the rotation. Forward saves their input: q and k as the linear layer computed them.
// Backward recomputes norm and rotation, which costs memory for a tensor of one layer instead of all layers.
//
// Dimension legend: as in block.h; N heads of queries and K heads of keys and values of size D.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>

#include "models/blocks/block.h"
#include "models/blocks/norm.h"

namespace blipft {

/// Rotation in radians per position, [rotated / 2].
using RotaryFrequencies = std::array<float, Rotary::kMaxFrequencies>;
/// The axis whose position rotates a pair, [rotated / 2]; see Rotary.
using RotaryAxes = std::array<uint8_t, Rotary::kMaxFrequencies>;
/// Divides the pairs among axes (M-RoPE). sections[a] pairs belong to axis a. `interleaved`: axis a > 0 of n has the pairs
/// i with i % n = a and i < n * sections[a], and axis 0 has the others. Else the pairs of an axis are consecutive.
RotaryAxes rotary_axes(std::span<const int64_t> sections, bool interleaved);

/// Rotary positions of a layer, see Rotary.
struct RotaryPositions {
  RotaryFrequencies frequencies{};
  RotaryAxes axes{};
  int64_t rotated = 0;                     ///< rotated elements of a head; 0: all
  float magnitude = 1;
};

class Attention : public Block {
 public:
  struct Shape {
    int64_t heads = 0, kv_heads = 0, head_size = 0;
    bool causal = false;
    DropoutSite dropout;                   ///< of the attention probabilities
    bool texts = false;                    ///< rows or memory are texts, whose padding must not change dropout masks
    std::optional<RotaryPositions> rotary; ///< of queries and keys
    float scale = 0;                       ///< factor of the scores; 0: 1 / sqrt(D)
    int64_t window = 0;                    ///< number of keys that a query attends to, see AttentionForward; 0: all
    float cap = 0;                         ///< cap of the scores; 0: none
    int64_t group_rows = 0;                ///< maximum number of rows of a window; rows attend within LayerCall::windows. 0: they
                                           ///< attend within samples
    std::optional<Norm> q_norm, k_norm;    ///< both or none; Norm::size tells if they are per head or over all heads
    int64_t q_width() const { return heads * head_size; }
    int64_t kv_width() const { return kv_heads * head_size; }
  };

  /// Self attention: qkv [N D + 2 K D, H] with queries, keys and values in this order; output [H, N D].
  Attention(const Unit& unit, const Shape& shape, LinearLayer qkv, LinearLayer output)
      : Block(unit), shape_(shape), from_rows_(std::move(qkv)), output_(std::move(output)) {}
  /// Cross attention: query [N D, H], key_value [2 K D, E], output [H, N D].
  Attention(const Unit& unit, const Shape& shape, LinearLayer query, LinearLayer key_value, LinearLayer output)
      : Block(unit), shape_(shape), cross_(true), from_rows_(std::move(query)), key_value_(std::move(key_value)),
        output_(std::move(output)) {}

  const LinearLayer& first() const override { return from_rows_; }
  const LinearLayer& last() const override { return output_; }
  Tensor forward(const UnitPass& pass, const LayerCall& call, Input input, const Output& output, SavedBlock& saved,
                 bool save) const override;
  void recompute(const UnitPass& pass, const LayerCall& call, Input input, SavedBlock& saved) const override;
  InputGradient backward(UnitBackward& pass, const LayerCall& call, const OutputGradient& incoming,
                         SavedBlock& saved) const override;
  Flops forward_flops(int64_t batch, double tokens, double memory_tokens) const override;
  int64_t cache_width() const override { return cross_ ? 0 : shape_.kv_width(); }
  int64_t memory_width() const override { return cross_ ? shape_.kv_width() : 0; }

 private:
  /// `qk` [M, N D + K D] replaces the first columns of saved.qkv if queries and keys have norms.
  AttentionForward arguments(const StepContext& context, const LayerCall& call, const SavedBlock& saved,
                             const Tensor& qk) const;
  Rotary rotary(const LayerCall& call, const MatrixView& heads, bool inverse) const;
  void rotate(const StepContext& context, const LayerCall& call, const Tensor& qk, bool inverse, const Tensor& amax = {}) const;
  void rotate_back(const UnitBackward& pass, const LayerCall& call, const Tensor& dqkv) const;
  /// Computes queries and keys as attention reads them from the linear layer's output: a new tensor [M, N D + K D].
  Tensor normed(const UnitPass& pass, const LayerCall& call, const Tensor& qkv, Tensor rstd[2]) const;
  /// Replaces their gradient in dqkv by the gradient of the linear layer's output.
  void norms_backward(const UnitBackward& pass, const LayerCall& call, const Tensor& qkv, const Tensor rstd[2],
                      const Tensor& dqkv) const;
  Dropout memory_rows(const UnitPass& pass, const LayerCall& call) const;
  void memory_backward(UnitBackward& pass, const LayerCall& call, Tensor dkv) const;
  void write_cache(const StepContext& context, const LayerCall& call, const Tensor& normed, const Tensor& qkv) const;
  void write_memory_cache(const StepContext& context, const LayerCall& call, const Tensor& kv) const;
  float scale() const;                     // factor of the scores
  /// The rows inside of which self attention attends.
  RowGroups groups(const LayerCall& call) const {
    return shape_.group_rows > 0 ? call.windows : RowGroups{call.batch, call.tokens, call.packing};
  }
  AttentionDecode decode_arguments(const LayerCall& call, const MatrixView& q, const Tensor& out) const;
  Tensor attend_to_cache(const UnitPass& pass, const LayerCall& call, Input input) const;

  Shape shape_;
  bool cross_ = false;
  LinearLayer from_rows_, key_value_, output_;
};

}  // namespace blipft
