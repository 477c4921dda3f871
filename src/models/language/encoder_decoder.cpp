// Implements encoder-decoders; see encoder_decoder.h.
#include "models/language/encoder_decoder.h"

#include <utility>

namespace blipft {

namespace {

// Applies dropout in place.
void drop(const StepContext& context, const DropoutSite& site, const StreamRows& source, const Tensor& x) {
  if (const Dropout dropout = site.of(context, call_of(source)))
    context.ops.dropout_add({.x = x, .dropout = dropout, .y = x}, context.stream);
}

}  // namespace

bool EncoderDecoder::trains_encoder(bool picture_gradient) const {
  return picture_gradient || source.unit->trainable || memory_unit->trainable || encoder.trained();
}

bool EncoderDecoder::trains_below_head(bool picture_gradient) const {
  return trains_encoder(picture_gradient) || text.unit->trainable || decoder.trained();
}

LayerCall EncoderDecoder::decoder_call(const MicroBatch& batch) const {
  LayerCall call = call_of(batch.text);
  call.memory = memory_;
  call.memory_tokens = batch.source.max_rows;
  call.memory_lengths = batch.source.key_lengths, call.memory_packing = batch.source.packing;
  return call;
}

// Returns the memory [N, H], the encoder's normed output that the decoder's layers read.
Tensor EncoderDecoder::encode(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor pictures, bool save) {
  Tensor x = source.forward(context, batch.source, dtype, pictures);
  x = encoder.forward(context, call_of(batch.source), x, save);
  const Tensor flat = context.units.acquire(*memory_unit);
  const ObservedPhase phase(context, Phase::forward, *memory_unit);
  NormResult normed = take_norm(context, memory_norm, flat, x);
  const Tensor memory = std::exchange(normed.y, {});
  drop(context, memory_dropout, batch.source, memory);
  if (save) encoded_ = x, statistics_ = normed;
  else give(context, x), give(context, normed);
  context.units.release(*memory_unit);
  return memory;
}

Tensor EncoderDecoder::forward(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor pictures, bool save,
                               bool picture_gradient) {
  memory_ = encode(context, batch, dtype, pictures, save && trains_encoder(picture_gradient));
  const Tensor x = text.forward(context, batch.text, dtype, {});
  const Tensor y = decoder.forward(context, decoder_call(batch), x, save);
  if (!save) give(context, memory_);
  return y;
}

void EncoderDecoder::loss(const StepContext& context, const MicroBatch& batch, Tensor x) const {
  head.forward_loss(context, x, batch);
}

Tensor EncoderDecoder::loss_and_backward(const StepContext& context, const MicroBatch& batch, Tensor x,
                                         bool picture_gradient) {
  Tensor dx = head.forward_backward(context, x, batch);
  const bool into_encoder = trains_encoder(picture_gradient);
  MemoryGradient gradient;
  if (trains_below_head(picture_gradient)) {
    if (into_encoder) gradient.sum = take(context, "gradients of the memory", dx.dtype, memory_.shape);
    LayerCall call = decoder_call(batch);
    call.memory_gradient = &gradient;
    dx = decoder.backward(context, call, dx);
    give(context, memory_);
  }
  const bool shared = text.unit == source.unit;  // the encoder's backward completes the gradient of a shared table
  text.backward(context, batch.text, dx, false, shared);
  if (!into_encoder) return {};
  BLIPFT_CHECK(gradient.started, "no cross attention reads the encoder");
  return encoder_backward(context, batch, gradient.sum, picture_gradient);
}

// Takes ownership of dmemory [N, H].
Tensor EncoderDecoder::encoder_backward(const StepContext& context, const MicroBatch& batch, Tensor dmemory,
                                        bool picture_gradient) {
  {
    const UnitPass unit_pass = acquire(context, *memory_unit);
    const ObservedPhase phase(context, Phase::backward, *memory_unit);
    UnitBackward pass(unit_pass, gradients(context, *memory_unit));
    drop(context, memory_dropout, batch.source, dmemory);
    memory_norm.backward(pass, {.dy = dmemory, .x = encoded_, .mean = statistics_.mean, .rstd = statistics_.rstd,
                                .dx = dmemory});
    pass.join();
    give(context, encoded_);
    give(context, statistics_);
    release(context, *memory_unit);
    publish(context, *memory_unit);
  }
  const Tensor dx = encoder.backward(context, call_of(batch.source), dmemory);
  return source.backward(context, batch.source, dx, picture_gradient);
}

Tensor EncoderDecoder::read_prompts(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor pictures,
                                    const CacheCall& cache) {
  memory_ = encode(context, batch, dtype, pictures, false);
  LayerCall call = decoder_call(batch);
  call.decoding = &cache;
  const Tensor x = decoder.forward(context, call, text.forward(context, batch.text, dtype, {}), false);
  give(context, memory_);
  return head.logits(context, x, cache.last_rows);
}

Tensor EncoderDecoder::decode(const StepContext& context, DType dtype, const CacheCall& cache) {
  const Tensor x = text.decode(context, dtype, cache);
  const LayerCall call{.batch = cache.tokens.rows(), .tokens = 1, .positions = cache.positions, .decoding = &cache};
  return head.logits(context, decoder.forward(context, call, x, false), {});
}

double EncoderDecoder::layer_flops(const Layer& layer, Phase phase, int64_t batch_size, double rows, double memory_rows,
                                   bool reached, bool memory_gradient) const {
  switch (phase) {
    case Phase::forward: return layer.forward_flops(batch_size, rows, memory_rows);
    case Phase::recompute: return layer.recompute_flops(batch_size, rows, memory_rows);
    case Phase::backward:
      return reached ? layer.backward_flops(batch_size, rows, layer.unit->trainable, memory_rows, memory_gradient) : 0;
    default: break;
  }
  return 0;
}

std::optional<double> EncoderDecoder::unit_flops(const Unit& unit, Phase phase, int64_t batch_size, const TextRows& rows,
                                                 bool picture_gradient) const {
  if (&unit == source.unit || &unit == text.unit || &unit == memory_unit) return 0;  // no matrix product
  if (&unit == head.unit) return phase == Phase::loss ? head.flops(batch_size, rows.text) : 0;
  const double memory = static_cast<double>(first_rows) + rows.source;
  const bool into_encoder = trains_encoder(picture_gradient);
  if (const Layer* layer = encoder.layer_of(unit))
    return layer_flops(*layer, phase, batch_size, memory, 0, into_encoder, false);
  if (const Layer* layer = decoder.layer_of(unit))
    return layer_flops(*layer, phase, batch_size, rows.text, memory, trains_below_head(picture_gradient), into_encoder);
  return std::nullopt;
}

}  // namespace blipft
