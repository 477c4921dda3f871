// Implements language models; see language_model.h.
#include "models/language/language_model.h"

#include <algorithm>

namespace blipft {

bool LanguageModel::trains_below_head(bool picture_gradient) const {
  return picture_gradient || embedding.unit->trainable || layers.adapted() ||
         std::any_of(layers.layers.begin(), layers.layers.end(),
                     [](const Layer& layer) { return layer.unit->trainable; });
}

Tensor LanguageModel::forward(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor pictures,
                              bool save, bool) {
  const Tensor x = embedding.forward(context, batch.text, dtype, pictures);
  return layers.forward(context, call(batch), x, save);
}

void LanguageModel::loss(const StepContext& context, const MicroBatch& batch, Tensor x) const {
  head.forward_loss(context, x, batch);
}

Tensor LanguageModel::loss_and_backward(const StepContext& context, const MicroBatch& batch, Tensor x,
                                        bool picture_gradient) {
  Tensor dx = head.forward_backward(context, x, batch);
  if (trains_below_head(picture_gradient)) dx = layers.backward(context, picture_gradient ? call(batch) : call_of(batch.text), dx);
  return embedding.backward(context, batch.text, dx, picture_gradient);
}

Tensor LanguageModel::read_prompts(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor pictures,
                                   const CacheCall& cache) {
  const Tensor x = embedding.forward(context, batch.text, dtype, pictures);
  LayerCall of_prompts = call(batch);
  of_prompts.decoding = &cache;
  return head.logits(context, layers.forward(context, of_prompts, x, false), cache.last_rows);
}

Tensor LanguageModel::decode(const StepContext& context, DType dtype, const CacheCall& cache) {
  const Tensor x = embedding.decode(context, dtype, cache);
  const LayerCall of_step{.batch = cache.tokens.rows(), .tokens = 1,
                          .positions = cache.rotary_positions ? cache.rotary_positions : cache.positions, .decoding = &cache};
  return head.logits(context, layers.forward(context, of_step, x, false), {});
}

std::optional<double> LanguageModel::unit_flops(const Unit& unit, Phase phase, int64_t batch_size,
                                                const TextRows& of_text, bool picture_gradient) const {
  if (&unit == embedding.unit) return 0;   // no matrix product
  if (&unit == head.unit) return phase == Phase::loss ? head.flops(batch_size, of_text.text) : 0;
  const Layer* layer = layers.layer_of(unit);
  if (!layer) return std::nullopt;
  const double rows = static_cast<double>(first_rows) + of_text.text;
  switch (phase) {
    case Phase::forward: return layer->forward_flops(batch_size, rows);
    case Phase::recompute: return layer->recompute_flops(batch_size, rows);
    case Phase::backward:
      return trains_below_head(picture_gradient) ? layer->backward_flops(batch_size, rows, unit.trainable) : 0;
    default: break;
  }
  return 0;
}

}  // namespace blipft
