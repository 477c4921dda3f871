// Language: what the text of a sample goes through, behind rows that another part of the model puts before it: a decoder
// (language_model.h), or an encoder and a decoder (encoder_decoder.h). A vision-language model has one or the other.
//
// Dimension legend: B samples, Q prefix rows of a sample, M rows of the text that is predicted, H hidden size.
#pragma once

#include <optional>

#include "models/language/language_head.h"

namespace blipft {

class Language {
 public:
  virtual ~Language() = default;
  LanguageHead head;

  /// Whether backward goes below the head, or ends in it.
  virtual bool trains_below_head(bool prefix_gradient) const = 0;
  /// What the head reads [M, H], the caller's; `save` keeps what backward needs, with the prefix's gradient or without. Takes
  /// `prefix` [B * Q, H] over.
  virtual Tensor forward(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor prefix, bool save,
                         bool prefix_gradient = false) = 0;
  /// Takes x [M, H] over, adds to batch.loss.
  virtual void loss(const StepContext& context, const MicroBatch& batch, Tensor x) const = 0;
  /// The same, and backward: publishes every trained unit. The gradient of the prefix [B * Q, H], where it is wanted.
  virtual Tensor loss_and_backward(const StepContext& context, const MicroBatch& batch, Tensor x,
                                   bool prefix_gradient) = 0;
  /// As Model::read_prompts(), decode(), cache_widths() and memory_widths(). Takes `prefix` [B * Q, H] over.
  virtual Tensor read_prompts(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor prefix,
                              const CacheCall& cache) = 0;
  virtual Tensor decode(const StepContext& context, DType dtype, const CacheCall& cache) = 0;
  virtual std::vector<int64_t> cache_widths() const = 0;
  virtual std::vector<int64_t> memory_widths() const { return {}; }
  /// As Model::unit_flops; nothing for a unit that is not of this model.
  virtual std::optional<double> unit_flops(const Unit& unit, Phase phase, int64_t batch_size, const TextRows& rows,
                                           bool prefix_gradient) const = 0;
};

}  // namespace blipft
