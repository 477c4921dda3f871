// A language model: embedded texts, a stack of layers, a head. A family of text models is one of these; a vision-language
// model puts prefix rows before the texts.
//
// Dimension legend: B samples, Q prefix rows of a sample, T text tokens, S = Q + T rows of a sample (packed samples: at
// most), M rows in all, B * S unless packed, H hidden size.
#pragma once

#include <optional>

#include "models/blocks/language_head.h"
#include "models/blocks/stack.h"
#include "models/blocks/text_embedding.h"

namespace blipft {

class LanguageModel {
 public:
  TextEmbedding embedding;
  Stack layers;
  LanguageHead head;

  /// Whether backward goes into the layers, or ends in the head.
  bool trains_below_head(bool prefix_gradient) const;
  /// What the head reads [M, H], the caller's; `save` keeps what backward needs. Takes `prefix` [B * Q, H] over.
  Tensor forward(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor prefix, bool save);
  /// Takes x [M, H] over, adds to batch.loss.
  void loss(const StepContext& context, const MicroBatch& batch, Tensor x) const;
  /// The same, and backward: publishes every trained unit. The gradient of the prefix [B * Q, H], where it is wanted.
  Tensor loss_and_backward(const StepContext& context, const MicroBatch& batch, Tensor x, bool prefix_gradient);
  /// As Model::read_prompts() and Model::decode(). Takes `prefix` [B * Q, H] over.
  Tensor read_prompts(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor prefix,
                      const CacheCall& cache);
  Tensor decode(const StepContext& context, DType dtype, const CacheCall& cache);
  /// As Model::unit_flops; nothing for a unit that is not of this model.
  std::optional<double> unit_flops(const Unit& unit, Phase phase, int64_t batch_size, double text_rows,
                                   bool prefix_gradient) const;

 private:
  LayerCall call(const MicroBatch& batch) const;
  /// Each text row predicts the next one: a sample's last row has nothing to predict.
  RowBlocks predicting(const MicroBatch& batch) const;
};

}  // namespace blipft
