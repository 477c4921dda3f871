// The MLP of a transformer layer: plain, fc2(act(fc1(x))), or gated (SwiGLU), down(act(gate(x)) * up(x)).
//
// Dimension legend: as in block.h; F inner size.
#pragma once

#include "models/blocks/block.h"

namespace blipft {

/// fc2(drop(act(fc1(x)))). It saves [M, F]: with gelu the input of the activation; with relu its output, or only the
/// signs of the output, u8 [ceil(M F / 8)], if no weight gradient reads the output.
class Mlp : public Block {
 public:
  /// fc1 [F, H], fc2 [H, F]; `dropout` applies to the inner values.
  Mlp(const Unit& unit, Activation activation, LinearLayer fc1, LinearLayer fc2, DropoutSite dropout = {})
      : Block(unit), activation_(activation), fc1_(std::move(fc1)), fc2_(std::move(fc2)), dropout_(dropout) {}

  const LinearLayer& first() const override { return fc1_; }
  const LinearLayer& last() const override { return fc2_; }
  Tensor forward(const UnitPass& pass, const LayerCall& call, Input input, const Output& output, SavedBlock& saved,
                 bool save) const override;
  void recompute(const UnitPass& pass, const LayerCall& call, Input input, SavedBlock& saved) const override;
  InputGradient backward(UnitBackward& pass, const LayerCall& call, const OutputGradient& incoming,
                         SavedBlock& saved) const override;
  Flops forward_flops(int64_t batch, double tokens, double memory_tokens) const override;

 private:
  bool keeps_input_of_activation() const { return is_gelu(activation_); }
  /// Takes ownership of relu's output; returns what backward needs of it: the output itself, or its signs.
  Tensor keep_activated(const UnitPass& pass, Tensor activated) const;

  Activation activation_;
  LinearLayer fc1_, fc2_;
  DropoutSite dropout_;
};

/// down(drop(act(gate(x)) * up(x))). It saves gate and up, [M, 2 F], whose memory backward reuses for their gradients.
class GatedMlp : public Block {
 public:
  /// gate_up [2 F, H], gate before up; down [H, F]; `dropout` applies to the inner values.
  GatedMlp(const Unit& unit, LinearLayer gate_up, LinearLayer down, GateActivation activation = GateActivation::silu,
           DropoutSite dropout = {})
      : Block(unit), activation_(activation), gate_up_(std::move(gate_up)), down_(std::move(down)), dropout_(dropout) {}

  const LinearLayer& first() const override { return gate_up_; }
  const LinearLayer& last() const override { return down_; }
  Tensor forward(const UnitPass& pass, const LayerCall& call, Input input, const Output& output, SavedBlock& saved,
                 bool save) const override;
  void recompute(const UnitPass& pass, const LayerCall& call, Input input, SavedBlock& saved) const override;
  InputGradient backward(UnitBackward& pass, const LayerCall& call, const OutputGradient& incoming,
                         SavedBlock& saved) const override;
  Flops forward_flops(int64_t batch, double tokens, double memory_tokens) const override;

 private:
  GateActivation activation_;
  LinearLayer gate_up_, down_;
  DropoutSite dropout_;
};

}  // namespace blipft
