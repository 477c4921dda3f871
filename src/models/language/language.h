// Language: the part of a model that processes the text of a sample, after rows of a picture from another part of the model.
// It is a decoder (language_model.h), or an encoder and a decoder (encoder_decoder.h), in vision-language models too.
//
// Dimension legend: B samples, Q picture rows of a sample, M rows of the predicted text, H hidden size.
#pragma once

#include <optional>

#include "models/language/language_head.h"

namespace blipft {

class Language {
 public:
  virtual ~Language() = default;
  LanguageHead head;
  int64_t first_rows = 0;                  ///< Q

  /// Returns true if backward continues below the head.
  virtual bool trains_below_head(bool picture_gradient) const = 0;
  /// Returns the head's input [M, H], which the caller must give back. `save` keeps what backward needs, including the
  /// gradient of `pictures` if `picture_gradient`. Takes ownership of `pictures` [B * Q, H].
  virtual Tensor forward(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor pictures, bool save,
                         bool picture_gradient = false) = 0;
  /// Takes ownership of x [M, H]; adds to batch.loss.
  virtual void loss(const StepContext& context, const MicroBatch& batch, Tensor x) const = 0;
  /// Computes loss() and backward; publishes every trained unit. Returns the gradient of `pictures`, if requested.
  virtual Tensor loss_and_backward(const StepContext& context, const MicroBatch& batch, Tensor x,
                                   bool picture_gradient) = 0;
  /// Like Model::read_prompts(), decode(), cache_widths() and memory_widths(). Takes ownership of `pictures` [B * Q, H].
  virtual Tensor read_prompts(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor pictures,
                              const CacheCall& cache) = 0;
  virtual Tensor decode(const StepContext& context, DType dtype, const CacheCall& cache) = 0;
  virtual std::vector<int64_t> cache_widths() const = 0;
  virtual std::vector<int64_t> memory_widths() const { return {}; }
  /// Like Model::unit_flops(); nullopt for a unit of another part of the model.
  virtual std::optional<double> unit_flops(const Unit& unit, Phase phase, int64_t batch_size, const TextRows& rows,
                                           bool picture_gradient) const = 0;
};

}  // namespace blipft
