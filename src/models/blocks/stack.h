// A stack of layers over one residual stream: acquires units, checkpoints activations and offloads them. Each layer is
// one unit and a list of sublayers; layers of a stack may differ.
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

  /// Takes ownership of x (stores it in `saved`, or gives it back if `save` is false). The result is the caller's.
  Tensor forward(const UnitPass& pass, const LayerCall& call, Tensor x, Saved& saved, bool save) const;
  /// Gives back all of `saved` except the input, which recompute() needs.
  void give_all_but_input(const StepContext& context, Saved& saved) const;
  /// Recomputes the rest of `saved`.
  void recompute(const UnitPass& pass, const LayerCall& call, Saved& saved) const;
  /// Takes ownership of dy and `saved`; the caller must give back the result, the gradient of x. `below` is the layer
  /// that computed x, or null for the first layer; the result then contains the requests of that layer's backward.
  ResidualGradient backward(const UnitPass& pass, const UnitGradients& gradients, const LayerCall& call,
                            ResidualGradient dy, Saved& saved, const Layer* below) const;

  /// Return operations over B samples of T tokens (their mean) with P memory tokens.
  double forward_flops(int64_t batch, double tokens, double memory_tokens = 0) const;
  double recompute_flops(int64_t batch, double tokens, double memory_tokens = 0) const;
  /// `trained`: includes gradients of weights. `memory_gradient`: includes the gradient of the memory.
  double backward_flops(int64_t batch, double tokens, bool trained, double memory_tokens = 0,
                        bool memory_gradient = false) const;

 private:
  Sublayer::Placement placement_of(size_t i) const;
  /// Returns true if the sublayer below can recompute this one's input.
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
  int64_t checkpointed = 0;                // number of layers from the first on that recompute
  std::optional<RelativePositions> relative;

  /// Takes ownership of x [M, H]; `save` keeps what backward needs. The caller must give the result back.
  Tensor forward(const StepContext& context, const LayerCall& call, Tensor x, bool save);
  /// Takes ownership of dy. Publishes the layers' units. The caller must give back the result, the gradient of x.
  Tensor backward(const StepContext& context, const LayerCall& call, Tensor dy);
  /// Returns the layer of this unit, or null.
  const Layer* layer_of(const Unit& unit) const;
  bool adapted() const;                    ///< true if a layer has adapters
  bool trained() const;                    ///< true if a layer, or its adapters, are trained
  std::vector<int64_t> cache_widths() const;  ///< of each layer; see Block::cache_width()
  std::vector<int64_t> memory_widths() const; ///< of each layer; see Block::memory_width()

 private:
  // False for the last layer: its backward comes next, so that its input would be needed before the copy has finished.
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
  RelativeScores scores_;                  // scores of `relative`, from the first layer's forward to its backward
};

}  // namespace blipft
