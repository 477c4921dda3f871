// The Q-Former: learned queries that attend to themselves and, in every cross_frequency-th layer, to the picture. Its
// norms follow the residual sums. With instructions (InstructBLIP), the queries attend to these too; both use separate
// MLPs.
//
// Dimension legend: B samples, Q queries of a sample, R rows in total (B * Q, plus those of the instructions), D hidden
// size, F inner size, P picture tokens of a sample, E picture hidden size, N heads.
#pragma once

#include <functional>

#include "models/blocks/linear_lora.h"
#include "models/blocks/stack.h"
#include "models/families/picture/qformer_input.h"

namespace blipft {

struct QFormerShape {
  int64_t hidden = 768, heads = 12, inner = 3072, layers = 12, cross_frequency = 2, encoder_hidden = 1408, queries = 32;
  float norm_eps = 1e-12f, hidden_dropout = 0.1f, attention_dropout = 0.1f, init_std = 0.02f;
  Activation activation = Activation::gelu;
  InstructionShape instruction;
};

class QFormer {
 public:
  using AddUnit = std::function<Unit&(const std::string& name)>;
  /// `site`: number of its first dropout site.
  QFormer(const QFormerShape& shape, uint32_t site, const ModelSettings& settings, const AddUnit& add_unit, LoraBuilder& lora);

  /// Returns true if any part is trained: its input, its layers or their adapters.
  bool trained() const { return input_.unit().trainable || layers_.trained(); }
  /// picture [B * P, E]. Returns the output of the queries [B * Q, D], owned by the caller; `save`: for backward.
  Tensor forward(const StepContext& context, const MicroBatch& batch, const Tensor& picture, bool save);
  /// Takes ownership of dy [B * Q, D], writes dpicture [B * P, E] unless it is absent, publishes the trained units.
  void backward(const StepContext& context, const MicroBatch& batch, const Tensor& picture, Tensor dy,
                const Tensor& dpicture);
  /// Like Model::unit_flops(); nullopt for other units. `reached`: backward continues into the Q-Former.
  /// `instruction_rows`: of a sample.
  std::optional<double> unit_flops(const Unit& unit, Phase phase, int64_t batch_size, int64_t picture_tokens,
                                   bool reached, bool picture_gradient, double instruction_rows = 0) const;

 private:
  void add_layer(int64_t i, uint32_t site, uint32_t text_site, Unit& unit, LoraBuilder& lora);
  LayerCall call(const MicroBatch& batch, const Tensor& picture) const;
  Sublayer mlp(Unit& unit, const std::string& name, const char* which, uint32_t site, LoraBuilder& lora) const;

  QFormerShape shape_;
  QFormerInput input_;
  Stack layers_;
};

}  // namespace blipft
