// The input rows of a language model: embedded tokens, and rows of pictures from another part of the model, which are the
// first rows of each sample or replace tokens anywhere. With learned positions, if the model has them.
//
// Dimension legend: P picture rows in total (B * Q if they come first), M rows in total, V vocabulary, H hidden size.
#pragma once

#include "models/blocks/block.h"

namespace blipft {

class TextEmbedding {
 public:
  Unit* unit = nullptr;
  int64_t vocabulary = 0, hidden = 0;      // V, H
  int64_t tokens = -1;                     // offset of [V, H]
  int64_t positions = -1, position_rows = 0;  // offset of [rows, H], -1: none; see TextEmbed
  int64_t padding_id = -1;                 // token without gradient; -1: none
  float token_scale = 1;                   // factor of token rows, see TextEmbed
  DropoutSite dropout;                     // of all rows

  /// Returns [M, H], owned by the caller. Takes ownership of `pictures` [P, H], absent if P is 0.
  Tensor forward(const StepContext& context, const StreamRows& rows, DType dtype, Tensor pictures) const;
  /// Returns the rows of a decode step, cache.tokens at positions cache.positions: [S, H], owned by the caller.
  Tensor decode(const StepContext& context, DType dtype, const CacheCall& cache) const;
  /// Takes ownership of dx [M, H]; publishes a trained unit. Returns the gradient of `pictures`, if requested.
  /// `used_again`: a later part of this backward adds to the unit's gradient, and publishes it.
  Tensor backward(const StepContext& context, const StreamRows& rows, Tensor dx, bool picture_gradient,
                  bool used_again = false) const;

 private:
  TextEmbed arguments(const StreamRows& rows, const Tensor& x) const;
  void drop(const StepContext& context, const StreamRows& rows, const Tensor& x) const;
  void set_tables(TextEmbed& args, const Tensor& flat) const;
};

}  // namespace blipft
