// Implements the Q-Former's input; see qformer_input.h.
#include "models/families/picture/qformer_input.h"

namespace blipft {

void QFormerInput::add(Unit& unit, float norm_eps, float init_std) {
  unit_ = &unit;
  const Init init = Init::normal(init_std);
  query_tokens_ = unit.add("query_tokens", {1, queries, hidden}, init);
  if (!instruction) {
    norm_ = add_norm(unit, "qformer.layernorm", hidden, norm_eps);
    return;
  }
  const auto add_table = [&](const char* name, int64_t size) {
    return unit.add(concat("qformer.embeddings.", name, ".weight"), {size, hidden}, init, false,
                    ParameterKind::embedding);
  };
  words_ = add_table("word_embeddings", instruction.vocabulary);
  positions_ = add_table("position_embeddings", instruction.positions);
  norm_ = add_norm(unit, "qformer.embeddings.layernorm", hidden, norm_eps);
}

// Returns the arguments to embed the instructions' words, or their positions if `of_positions`: all rows as one text.
TextEmbed QFormerInput::table(const MicroBatch& batch, const Tensor& flat, bool of_positions) const {
  const StreamRows& rows = batch.instruction;
  if (of_positions)
    return {.ids = rows.positions, .lengths = rows.lengths.part(0, {1}),
            .tokens = flat.part(positions_, {instruction.positions, hidden})};
  return {.ids = rows.ids, .lengths = rows.lengths, .tokens = flat.part(words_, {instruction.vocabulary, hidden}),
          .padding_id = instruction.padding_id, .packing = rows.text_packing};
}

// Returns the norm's input [R, D], owned by the caller. Without instructions: the queries [Q, D] of all samples.
Tensor QFormerInput::rows(const StepContext& context, const MicroBatch& batch, const LayerCall& call,
                          const Tensor& flat) const {
  if (!instruction) return queries_of(flat);
  const Tensor x = take(context, "queries and instructions", flat.dtype, {batch.instruction.rows, hidden});
  const RowRange before{queries, false}, text{queries, true};
  ScopedTensor tiled(context, "queries", flat.dtype, {call.batch * queries, hidden});
  context.ops.tile_rows(queries_of(flat), tiled, context.stream);
  context.ops.spread_rows(before.of(x, tiled, call.tokens, call.packing), context.stream);
  const Shape shape = {batch.instruction.rows - call.batch * queries, hidden};
  ScopedTensor words(context, "instructions", flat.dtype, shape), positions(context, "instructions", flat.dtype, shape);
  for (const bool of_positions : {false, true}) {
    TextEmbed embed = table(batch, flat, of_positions);
    embed.x = of_positions ? positions : words;
    context.ops.text_embed_forward(embed, context.stream);
  }
  context.ops.dropout_add({.x = words, .residual = positions, .y = words}, context.stream);
  context.ops.spread_rows(text.of(x, words, call.tokens, call.packing), context.stream);
  return x;
}

Tensor QFormerInput::forward(const StepContext& context, const MicroBatch& batch, const LayerCall& call) const {
  const Tensor flat = context.units.acquire(*unit_);
  const ObservedPhase phase(context, Phase::forward, *unit_);
  Tensor x = rows(context, batch, call, flat);
  NormResult normed = take_norm(context, norm_, flat, x);
  Tensor y = std::exchange(normed.y, {});
  give(context, normed);
  if (instruction) {
    give(context, x);
  } else {                                 // the norm has run once for all samples; copies its output to each
    const Tensor one = std::exchange(y, take(context, "queries", flat.dtype, {call.batch * queries, hidden}));
    context.ops.tile_rows(one, y, context.stream);
    context.arena.give(one);
  }
  if (const Dropout mask = dropout.of(context, call))
    context.ops.dropout_add({.x = y, .dropout = mask, .y = y}, context.stream);
  context.units.release(*unit_);
  return y;
}

void QFormerInput::backward(const StepContext& context, const MicroBatch& batch, const LayerCall& call,
                            const Tensor& dy) const {
  const Tensor flat = context.units.acquire(*unit_);
  const ObservedPhase phase(context, Phase::backward, *unit_);
  const UnitGradient gradient = context.units.gradient(*unit_);
  if (const Dropout mask = dropout.of(context, call))
    context.ops.dropout_add({.x = dy, .dropout = mask, .y = dy}, context.stream);
  ScopedTensor summed(context, "gradients", flat.dtype, {queries, hidden});
  if (!instruction) context.ops.sum_tiles(dy, summed, false, context.stream);
  const Tensor dx = instruction ? dy : summed.get();
  Tensor x = rows(context, batch, call, flat);
  NormResult normed = take_norm(context, norm_, flat, x);
  context.ops.norm_backward({.dy = dx, .x = x, .mean = normed.mean, .rstd = normed.rstd, .gamma = norm_.g(flat),
                             .dgamma = norm_.g(gradient.flat), .dbeta = norm_.b(gradient.flat),
                             .accumulate = gradient.accumulate, .dx = dx},
                            context.stream);
  give(context, normed);
  if (instruction) give(context, x);
  backward_of_rows(context, batch, call, dx, gradient);
  context.units.release(*unit_);
  context.units.publish(*unit_);
}

void QFormerInput::backward_of_rows(const StepContext& context, const MicroBatch& batch, const LayerCall& call,
                                    const Tensor& dx, const UnitGradient& gradient) const {
  const Tensor dqueries = queries_of(gradient.flat);
  if (!instruction) return context.ops.sum_tiles(dx, dqueries, gradient.accumulate, context.stream);
  const RowRange before{queries, false}, text{queries, true};
  ScopedTensor tiled(context, "gradients", dx.dtype, {call.batch * queries, hidden});
  context.ops.pick_rows(before.of(dx, tiled, call.tokens, call.packing), context.stream);
  context.ops.sum_tiles(tiled, dqueries, gradient.accumulate, context.stream);
  ScopedTensor words(context, "gradients", dx.dtype, {dx.rows() - tiled.get().rows(), hidden});
  context.ops.pick_rows(text.of(dx, words, call.tokens, call.packing), context.stream);
  for (const bool of_positions : {false, true}) {
    TextEmbed embed = table(batch, gradient.flat, of_positions);
    embed.x = words;
    embed.accumulate_tokens = gradient.accumulate;
    context.ops.text_embed_backward(embed, context.stream);
  }
}

}  // namespace blipft
