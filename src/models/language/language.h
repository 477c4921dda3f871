// Language: the part of a model that processes the text of a sample, after prefix rows from another part of the model.
// It is a decoder (language_model.h), or an encoder and a decoder (encoder_decoder.h), in vision-language models too.
//
// Dimension legend: B samples, Q prefix rows of a sample, M rows of the predicted text, H hidden size.
#pragma once

#include <optional>

#include "models/language/language_head.h"

namespace blipft {

class Language {
 public:
  virtual ~Language() = default;
  LanguageHead head;

  /// Returns true if backward continues below the head.
  virtual bool trains_below_head(bool prefix_gradient) const = 0;
  /// Returns the head's input [M, H], which the caller must give back. `save` keeps what backward needs, including the
  /// prefix's gradient if `prefix_gradient`. Takes ownership of `prefix` [B * Q, H].
  virtual Tensor forward(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor prefix, bool save,
                         bool prefix_gradient = false) = 0;
  /// Takes ownership of x [M, H]; adds to batch.loss.
  virtual void loss(const StepContext& context, const MicroBatch& batch, Tensor x) const = 0;
  /// Computes loss() and backward; publishes every trained unit. Returns the prefix's gradient [B * Q, H], if
  /// requested.
  virtual Tensor loss_and_backward(const StepContext& context, const MicroBatch& batch, Tensor x,
                                   bool prefix_gradient) = 0;
  /// Like Model::read_prompts(), decode(), cache_widths() and memory_widths(). Takes ownership of `prefix` [B * Q, H].
  virtual Tensor read_prompts(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor prefix,
                              const CacheCall& cache) = 0;
  virtual Tensor decode(const StepContext& context, DType dtype, const CacheCall& cache) = 0;
  virtual std::vector<int64_t> cache_widths() const = 0;
  virtual std::vector<int64_t> memory_widths() const { return {}; }
  /// Like Model::unit_flops(); nullopt for a unit of another part of the model.
  virtual std::optional<double> unit_flops(const Unit& unit, Phase phase, int64_t batch_size, const TextRows& rows,
                                           bool prefix_gradient) const = 0;
};

}  // namespace blipft
