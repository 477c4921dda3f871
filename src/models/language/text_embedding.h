// Rows of a language model's input: prefix rows that another part of the model made, then embedded tokens, and learned
// positions where the model has any.
//
// Dimension legend: B samples, Q prefix rows of a sample, M rows in all, V vocabulary, H hidden size.
#pragma once

#include "models/blocks/block.h"

namespace blipft {

class TextEmbedding {
 public:
  Unit* unit = nullptr;
  int64_t vocabulary = 0, hidden = 0;      // V, H
  int64_t tokens = -1;                     // offset of [V, H]
  int64_t positions = -1, position_rows = 0;  // offset of [rows, H], -1: none; see TextEmbed
  int64_t padding_id = -1;                 // whose token row gets no gradient; -1: none
  int64_t prefix_rows = 0;                 // Q
  float token_scale = 1;                   // of token rows, see TextEmbed
  DropoutSite dropout;                     // of all rows

  /// [M, H], the caller's. Takes `prefix` [B * Q, H] over, absent without prefix rows.
  Tensor forward(const StepContext& context, const MicroBatch& batch, DType dtype, Tensor prefix) const;
  /// A decode step's rows, of cache.tokens at cache.places: [S, H], the caller's.
  Tensor decode(const StepContext& context, DType dtype, const CacheCall& cache) const;
  /// Takes dx [M, H] over, publishes the unit where it is trained. The prefix's gradient [B * Q, H], where it is wanted.
  /// `used_again`: a later part of this backward adds to the unit's gradient, and publishes it.
  Tensor backward(const StepContext& context, const MicroBatch& batch, Tensor dx, bool prefix_gradient,
                  bool used_again = false) const;

 private:
  TextEmbed arguments(const MicroBatch& batch, const Tensor& x) const;
  void drop(const StepContext& context, const MicroBatch& batch, const Tensor& x) const;
  void set_tables(TextEmbed& args, const Tensor& flat) const;
};

}  // namespace blipft
