// A stack of layers over one residual stream: unit brackets, activation checkpointing and its offload. Each layer is one
// unit and a list of sublayers; layers of a stack may differ.
//
// Dimension legend: as in block.h.
#pragma once

#include <optional>
#include <vector>

#include "blipft/relative_bias.h"
#include "models/blocks/sublayer.h"

namespace blipft {

class Layer {
 public:
  Unit* unit = nullptr;
  std::vector<Sublayer> sublayers;

  using Saved = std::vector<Sublayer::Saved>;  // of each sublayer; the first one's x is the layer's input

  /// Takes x over (it ends in `saved`, or is given back when `save` is false); the result is the caller's.
  Tensor forward(const UnitPass& pass, const LayerCall& call, Tensor x, Saved& saved, bool save) const;
  /// Leaves what recompute() starts from.
  void give_all_but_input(const StepContext& context, Saved& saved) const;
  /// Computes the rest of what backward needs again.
  void recompute(const UnitPass& pass, const LayerCall& call, Saved& saved) const;
  /// Takes dy and what was saved over; the result, of x, is the caller's. `below`, the layer that made x, is null for the
  /// first one: the result holds what its backward begins with.
  ResidualGradient backward(const UnitPass& pass, const UnitGradients& gradients, const LayerCall& call,
                            ResidualGradient dy, Saved& saved, const Layer* below) const;

  /// Operations over B samples of T tokens (their mean) and P memory tokens.
  double forward_flops(int64_t batch, double tokens, double memory_tokens = 0) const;
  double recompute_flops(int64_t batch, double tokens, double memory_tokens = 0) const;
  /// With the gradients of weights (`trained`) or without, and with the memory's or without.
  double backward_flops(int64_t batch, double tokens, bool trained, double memory_tokens = 0,
                        bool memory_gradient = false) const;

 private:
  Sublayer::Place place_of(size_t i) const;
  /// Whether the sublayer below can make this one's input again.
  bool makes_input_again(size_t i) const;
  Block::Flops flops(int64_t batch, double tokens, double memory_tokens) const;
};

/// Relative positions that all layers of a stack share (T5): a table in the first layer's unit.
struct RelativePositions {
  int64_t table = -1;                      ///< offset of [buckets, N] in the first layer's unit
  int64_t heads = 0;                       ///< N
  RelativeBias rule;                       ///< without its tensors
};

class Stack {
 public:
  std::vector<Layer> layers;
  int64_t checkpointed = 0;                // the first layers recompute
  std::optional<RelativePositions> relative;

  /// x [M, H] is taken over; `save` keeps what backward needs. The result is the caller's.
  Tensor forward(const StepContext& context, const LayerCall& call, Tensor x, bool save);
  /// Takes dy over; the result, the gradient of x, is the caller's. Publishes the layers' units.
  Tensor backward(const StepContext& context, const LayerCall& call, Tensor dy);
  /// The layer of this unit; null: none.
  const Layer* layer_of(const Unit& unit) const;
  bool adapted() const;                    ///< whether a layer has adapters
  bool trained() const;                    ///< whether a layer, or adapters beside it, are trained
  std::vector<int64_t> cache_widths() const;  ///< of each layer; see Block::cache_width()
  std::vector<int64_t> memory_widths() const; ///< likewise

 private:
  // The last layer's backward comes next: its input would be back before it has gone.
  bool in_host(const StepContext& context, size_t i) const {
    return context.in_host && recomputes(i) && i + 1 < layers.size();
  }
  bool recomputes(size_t i) const { return static_cast<int64_t>(i) < checkpointed; }
  Tensor relative_table(const UnitWeights& flat) const {
    return flat.part(relative->table, {relative->rule.buckets(), relative->heads});
  }
  void make_relative(const UnitPass& pass);
  Tensor relative_gradient(const StepContext& context) const;
  void relative_backward(const StepContext& context, const UnitGradient& gradient, const Tensor& scores) const;
  std::vector<Layer::Saved> saved_;
  RelativeScores scores_;                  // of `relative`, from the first layer's forward to its backward
};

}  // namespace blipft
