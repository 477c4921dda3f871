// Implements the embedding of texts; see text_embedding.h.
#include "models/language/text_embedding.h"

namespace blipft {

TextEmbed TextEmbedding::arguments(const StreamRows& rows, const Tensor& x) const {
  return {.ids = rows.ids, .lengths = rows.lengths, .prefix_rows = rows.first_rows,
          .prefix_of_row = rows.picture_of_row, .row_of_prefix = rows.row_of_picture, .padding_id = padding_id,
          .token_scale = token_scale, .packing = rows.packing, .x = x};
}

void TextEmbedding::set_tables(TextEmbed& args, const Tensor& flat) const {
  args.tokens = flat.part(tokens, {vocabulary, hidden});
  if (positions >= 0) args.positions = flat.part(positions, {position_rows, hidden});
}

// Applies dropout in place.
void TextEmbedding::drop(const StepContext& context, const StreamRows& rows, const Tensor& x) const {
  if (!dropout) return;
  context.ops.dropout_add({.x = x, .dropout = dropout.of(context, call_of(rows)), .y = x}, context.stream);
}

Tensor TextEmbedding::forward(const StepContext& context, const StreamRows& rows, DType dtype, Tensor pictures) const {
  const Tensor flat = context.units.acquire(*unit);
  const ObservedPhase phase(context, Phase::forward, *unit);
  const Tensor x = take(context, "residual stream", dtype, {rows.rows, hidden});
  TextEmbed args = arguments(rows, x);
  set_tables(args, flat);
  args.prefix = pictures;
  context.ops.text_embed_forward(args, context.stream);
  drop(context, rows, x);
  give(context, pictures);
  context.units.release(*unit);
  return x;
}

Tensor TextEmbedding::decode(const StepContext& context, DType dtype, const CacheCall& cache) const {
  const Tensor flat = context.units.acquire(*unit);
  const ObservedPhase phase(context, Phase::forward, *unit);
  const Tensor x = take(context, "residual stream", dtype, {cache.tokens.rows(), hidden});
  TextEmbed args{.ids = cache.tokens, .lengths = cache.lengths, .row_positions = cache.positions, .token_scale = token_scale,
                 .x = x};
  set_tables(args, flat);
  context.ops.text_embed_forward(args, context.stream);
  context.units.release(*unit);
  return x;
}

Tensor TextEmbedding::backward(const StepContext& context, const StreamRows& rows, Tensor dx,
                               bool picture_gradient, bool used_again) const {
  if (!picture_gradient && !unit->trainable) {
    give(context, dx);
    return {};
  }
  const ObservedPhase phase(context, Phase::backward, *unit);
  drop(context, rows, dx);
  TextEmbed args = arguments(rows, dx);
  const int64_t pictures = rows.row_of_picture ? rows.row_of_picture.numel() : rows.samples * rows.first_rows;
  if (picture_gradient) args.prefix = take(context, "gradients", dx.dtype, {pictures, hidden});
  if (unit->trainable) {
    const UnitGradient gradient = context.units.gradient(*unit);
    set_tables(args, gradient.flat);
    args.accumulate_tokens = args.accumulate_positions = gradient.accumulate;
  }
  context.ops.text_embed_backward(args, context.stream);
  give(context, dx);
  if (unit->trainable && used_again) context.units.pause(*unit);
  else if (unit->trainable) context.units.publish(*unit);
  return args.prefix;
}

}  // namespace blipft
