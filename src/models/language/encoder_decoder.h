// An encoder-decoder of texts (T5): the encoder stack reads a source, and the decoder stack predicts a text, with cross
// attention to the encoder's output. A vision-language model inserts rows of a picture before the source.
//
// Dimension legend: B samples, Q picture rows of a sample, U source tokens, P = Q + U rows of a sample's source (packed:
// the maximum), N source rows in total; T text tokens, M text rows in total; H hidden size, V vocabulary.
#pragma once

#include "models/blocks/stack.h"
#include "models/language/language.h"
#include "models/language/text_embedding.h"

namespace blipft {

class EncoderDecoder : public Language {
 public:
  TextEmbedding source, text;              ///< rows of the encoder and of the decoder; in one unit or in two
  Stack encoder, decoder;                  ///< the decoder's cross attentions read the encoder's normed output
  Unit* memory_unit = nullptr;             ///< contains the norm after the encoder
  Norm memory_norm;
  DropoutSite memory_dropout;

  bool trains_below_head(bool picture_gradient) const override;
  Tensor forward(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor pictures, bool save,
                 bool picture_gradient = false) override;
  void loss(const StepContext& context, const MicroBatch& batch, Tensor x) const override;
  Tensor loss_and_backward(const StepContext& context, const MicroBatch& batch, Tensor x, bool picture_gradient) override;
  Tensor read_prompts(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor pictures,
                      const CacheCall& cache) override;
  Tensor decode(const StepContext& context, DType dtype, const CacheCall& cache) override;
  std::vector<int64_t> cache_widths() const override { return decoder.cache_widths(); }
  std::vector<int64_t> memory_widths() const override { return decoder.memory_widths(); }
  std::optional<double> unit_flops(const Unit& unit, Phase phase, int64_t batch_size, const TextRows& rows,
                                   bool picture_gradient) const override;

 private:
  bool trains_encoder(bool picture_gradient) const;  // true if backward continues from the decoder into the encoder
  LayerCall decoder_call(const MicroBatch& batch) const;
  Tensor encode(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor pictures, bool save);
  Tensor encoder_backward(const StepContext& context, const MicroBatch& batch, Tensor dmemory, bool picture_gradient);
  double layer_flops(const Layer& layer, Phase phase, int64_t batch_size, double rows, double memory_rows, bool reached,
                     bool memory_gradient) const;

  // Saved for backward.
  Tensor encoded_, memory_;                // [N, H]: input and output of the norm after the encoder
  NormResult statistics_;                  // of that norm, without its output
};

}  // namespace blipft
