// The input rows of a language model: prefix rows from another part of the model, then embedded tokens, with learned
// positions if the model has them.
//
// Dimension legend: B samples, Q prefix rows of a sample, M rows in total, V vocabulary, H hidden size.
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
  int64_t prefix_rows = 0;                 // Q
  float token_scale = 1;                   // factor of token rows, see TextEmbed
  DropoutSite dropout;                     // of all rows

  /// Returns [M, H], owned by the caller. Takes ownership of `prefix` [B * Q, H], absent without prefix rows.
  Tensor forward(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor prefix) const;
  /// Returns the rows of a decode step, cache.tokens at positions cache.places: [S, H], owned by the caller.
  Tensor decode(const StepContext& context, DType dtype, const CacheCall& cache) const;
  /// Takes ownership of dx [M, H]; publishes a trained unit. Returns the prefix's gradient [B * Q, H], if requested.
  /// `used_again`: a later part of this backward adds to the unit's gradient, and publishes it.
  Tensor backward(const StepContext& context, const MicroBatch& batch, Tensor dx, bool prefix_gradient,
                  bool used_again = false) const;

 private:
  TextEmbed arguments(const MicroBatch& batch, const Tensor& x) const;
  void drop(const StepContext& context, const MicroBatch& batch, const Tensor& x) const;
  void set_tables(TextEmbed& args, const Tensor& flat) const;
};

}  // namespace blipft
