// Attention: of a stack's rows among themselves, or to a memory (cross attention), with grouped heads, causal or not,
// with rotary positions or without.
//
// Dimension legend: as in block.h; N heads of queries and K heads of keys and values of size D.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "models/blocks/block.h"

namespace blipft {

/// Radians from one position to the next, [D / 2].
using RotaryFrequencies = std::array<float, Rotary::kMostFrequencies>;

class Attention : public Block {
 public:
  struct Shape {
    int64_t heads = 0, kv_heads = 0, head_size = 0;
    bool causal = false;
    DropoutSite dropout;                   ///< of the probabilities
    std::optional<RotaryFrequencies> rotary;  ///< of queries and keys
    int64_t q_width() const { return heads * head_size; }
    int64_t kv_width() const { return kv_heads * head_size; }
  };

  /// Self attention: qkv [N D + 2 K D, H], queries, keys and values in this order; output [H, N D].
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

 private:
  AttentionForward arguments(const StepContext& context, const LayerCall& call, const SavedBlock& saved) const;
  void rotate(const StepContext& context, const LayerCall& call, const Tensor& qkv, bool inverse) const;
  void memory_backward(UnitBackward& pass, const LayerCall& call, Tensor dkv) const;
  void write_cache(const StepContext& context, const LayerCall& call, const Tensor& qkv) const;
  Tensor attend_to_cache(const UnitPass& pass, const LayerCall& call, Input input) const;

  Shape shape_;
  bool cross_ = false;
  LinearLayer from_rows_, key_value_, output_;
};

}  // namespace blipft
