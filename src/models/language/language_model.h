// A language model: text embedding, a stack of layers, a head. It is the whole model in a family of text models; a
// vision-language model inserts rows of a picture before the texts.
//
// Dimension legend: B samples, Q picture rows of a sample, T text tokens, S = Q + T rows of a sample (packed: the
// maximum), M rows in total, B * S unless packed, H hidden size.
#pragma once

#include "models/blocks/stack.h"
#include "models/language/language.h"
#include "models/language/text_embedding.h"

namespace blipft {

class LanguageModel : public Language {
 public:
  TextEmbedding embedding;
  Stack layers;
  AddedRows added;                         // of pictures: filled before forward(), gradients after loss_and_backward()

  bool trains_below_head(bool picture_gradient) const override;
  Tensor forward(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor pictures, bool save,
                 bool picture_gradient = false) override;
  void loss(const StepContext& context, const MicroBatch& batch, Tensor x) const override;
  Tensor loss_and_backward(const StepContext& context, const MicroBatch& batch, Tensor x, bool picture_gradient) override;
  Tensor read_prompts(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor pictures,
                      const CacheCall& cache) override;
  Tensor decode(const StepContext& context, DType dtype, const CacheCall& cache) override;
  std::vector<int64_t> cache_widths() const override { return layers.cache_widths(); }
  std::optional<double> unit_flops(const Unit& unit, Phase phase, int64_t batch_size, const TextRows& rows,
                                   bool picture_gradient) const override;

 private:
  LayerCall call(const MicroBatch& batch) {
    LayerCall call = call_of(batch.text);
    call.added = &added;
    return call;
  }
};

}  // namespace blipft
