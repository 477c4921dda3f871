// The Q-Former: learned queries that attend to themselves and, in every few layers, to the picture. Its norms stand after
// the sums. With instructions (InstructBLIP), the queries attend to those too, whose rows go through MLPs of their own.
//
// Dimension legend: B samples, Q queries of a sample, R rows in all (B * Q, and those of the instructions), D hidden
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
  /// `site`: the first of its dropout sites.
  QFormer(const QFormerShape& shape, uint32_t site, const ModelSettings& settings, const AddUnit& add_unit, LoraBuilder& lora);

  /// Whether any of it is trained, its layers or adapters beside them.
  bool trained() const { return input_.unit().trainable || layers_.trained(); }
  /// picture [B * P, E]. The attended queries [B * Q, D], the caller's; `save` keeps what backward needs.
  Tensor forward(const StepContext& context, const MicroBatch& batch, const Tensor& picture, bool save);
  /// Takes dy [B * Q, D] over, fills dpicture [B * P, E] where it is there, publishes the trained units.
  void backward(const StepContext& context, const MicroBatch& batch, const Tensor& picture, Tensor dy,
                const Tensor& dpicture);
  /// As Model::unit_flops; nothing for a unit that is not its own. `reached`: backward comes here. `instruction_rows`
  /// of a sample.
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
