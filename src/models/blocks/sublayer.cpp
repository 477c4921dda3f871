// Implements sublayers, forward and backward; see sublayer.h.
#include "models/blocks/sublayer.h"

#include <utility>

namespace blipft {

namespace {

const char* stream_name(Sublayer::Placement placement) { return placement.last ? "residual stream" : "middle residual"; }

void give_x(const StepContext& context, ResidualStream& stream) {
  if (!stream.saved) give(context, stream.x);
  stream.x = {};
}

// Returns x + dropout(branch) as a new tensor, or x if there is no branch. Takes ownership of the stream.
Tensor added_up(const StepContext& context, ResidualStream& stream, const char* name) {
  if (!stream.branch) return stream.x;
  const Tensor sum = take(context, name, stream.branch.dtype, stream.branch.shape);
  context.ops.dropout_add({.x = stream.branch, .residual = stream.x, .dropout = stream.dropout, .y = sum}, context.stream);
  give(context, stream.branch);
  give_x(context, stream);
  return sum;
}

/// Returns `pass` for other rows of the same samples.
UnitPass with_rows(const UnitPass& pass, const LayerCall& own) {
  UnitPass result = pass;
  result.rows.rows_per_sample = own.tokens;
  result.rows.packing = own.packing;
  return result;
}

}  // namespace

void give(const StepContext& context, Sublayer::Saved& saved) {
  give(context, saved.x);
  give(context, saved.before);
  give(context, saved.after);
  give(context, saved.normed);
  give(context, saved.block);
}

// Returns the block's input. Afterwards in.x is the complete stream: the norm adds a pending branch.
Block::Input Sublayer::block_input(const UnitPass& pass, ResidualStream& in, bool makes_input_again, Saved& saved, bool save) const {
  const StepContext& context = pass.context;
  if (!before) {
    in = {.x = added_up(context, in, "middle residual")};
    return {in.x, false, makes_input_again ? Fp8Seen::alike : Fp8Seen::same};
  }
  NormResult normed;
  const Tensor amax = block->first().input_amax(pass);
  if (in.branch) {
    const Tensor sum = take(context, "middle residual", in.branch.dtype, in.branch.shape);
    normed = take_norm_of_sum(context, *before, pass.flat, in.branch, in.x, in.dropout, sum, amax);
    give(context, in.branch);
    give_x(context, in);
    in = {.x = sum};
  } else {
    normed = take_norm(context, *before, pass.flat, in.x, amax);
  }
  const Block::Input input{normed.y, true, before->rms() ? Fp8Seen::same : Fp8Seen::alike};
  normed.y = {};
  if (save) saved.before = normed; else give(context, normed);
  return input;
}

// Returns the stream after the branch. Takes ownership of both.
ResidualStream Sublayer::add(const UnitPass& pass, const LayerCall& call, ResidualStream in, Tensor branch, Placement placement,
                             Saved& saved, bool save) const {
  const StepContext& context = pass.context;
  if (after && after_sum) {
    ScopedTensor sum(context, "residual sum", branch.dtype, branch.shape);
    NormResult normed = take_norm_of_sum(context, *after, pass.flat, branch, in.x, dropout.of(context, call), sum);
    give(context, branch);
    give_x(context, in);
    const Tensor y = std::exchange(normed.y, {});
    if (save) saved.after = normed, saved.normed = sum.release(); else give(context, normed);
    return {.x = y};
  }
  if (after) {
    NormResult normed = take_norm(context, *after, pass.flat, branch);
    if (save) saved.normed = branch; else give(context, branch);
    branch = std::exchange(normed.y, {});
    if (save) saved.after = normed; else give(context, normed);
  }
  in.branch = branch, in.dropout = dropout.of(context, call);
  if (!placement.last) return in;
  return {.x = added_up(context, in, stream_name(placement))};
}

ResidualStream Sublayer::forward_rows(const UnitPass& pass, const LayerCall& call, ResidualStream in, Placement placement,
                                 Saved& saved, bool save) const {
  const StepContext& context = pass.context;
  const Block::Input input = block_input(pass, in, placement.makes_input_again, saved, save);
  const bool keep = save && !placement.makes_input_again;
  if (keep) saved.x = in.x;
  in.saved |= keep;
  if (!after && !dropout.of(context, call)) {  // the block's last linear layer adds the residual
    const Tensor y = block->forward(pass, call, input, {stream_name(placement), in.x}, saved.block, save);
    give_x(context, in);
    return {.x = y};
  }
  const Tensor branch = block->forward(pass, call, input, {"sublayer output", {}}, saved.block, save);
  return add(pass, call, in, branch, placement, saved, save);
}

void Sublayer::recompute_rows(const UnitPass& pass, const LayerCall& call, ResidualStream in, Placement placement,
                              Saved& saved) const {
  const StepContext& context = pass.context;
  if (after) {                             // the norm reads the block's output
    ResidualStream out = forward_rows(pass, call, in, placement, saved, true);
    give(context, out.x);
    return;
  }
  const Block::Input input = block_input(pass, in, placement.makes_input_again, saved, true);
  if (!placement.makes_input_again) saved.x = in.x;
  block->recompute(pass, call, input, saved.block);
  if (placement.makes_input_again) give_x(context, in);
}

Tensor Sublayer::output_again(const UnitPass& pass, const Saved& saved) const {
  return take_norm_again(pass.context, *after, pass.flat, saved.normed, saved.after);
}

// Computes the gradient of the block's output (`dropped`, or else dy) from the gradient of the sublayer's output; dy
// becomes the gradient of the sum.
ResidualGradient Sublayer::branch_gradient(UnitBackward& pass, const LayerCall& call, const ResidualGradient& incoming,
                                           Saved& saved) const {
  const StepContext& context = pass.context;
  const Tensor dy = incoming.dy;
  const Dropout mask = dropout.of(context, call);
  ResidualGradient result = incoming;
  if (after && after_sum) {
    result.bias = block->last().bias_gradient(pass);
    if (mask) result.dropped = take(context, "gradients", dy.dtype, dy.shape);
    after->backward(pass, {.dy = dy, .x = saved.normed, .mean = saved.after.mean, .rstd = saved.after.rstd,
                           .dropout = mask, .dropped = result.dropped, .dbias = result.bias.sums,
                           .accumulate_dbias = result.bias.accumulate, .dx = dy});
  } else {
    if (dropout && !result.dropped) {
      result.dropped = take(context, "gradients", dy.dtype, dy.shape);
      context.ops.dropout_add({.x = dy, .dropout = mask, .y = result.dropped}, context.stream);
    }
    if (!after) return result;
    if (!result.dropped) result.dropped = take(context, "gradients", dy.dtype, dy.shape);
    const Tensor of_normed = dropout ? result.dropped : dy;
    result.bias = block->last().bias_gradient(pass);
    after->backward(pass, {.dy = of_normed, .x = saved.normed, .mean = saved.after.mean, .rstd = saved.after.rstd,
                           .dbias = result.bias.sums, .accumulate_dbias = result.bias.accumulate,
                           .dx = result.dropped});
  }
  give(context, saved.normed);
  give(context, saved.after);
  return result;
}

// Returns the requests of the sublayer below to the writer of the input's gradient.
ResidualGradient Sublayer::hand(UnitBackward& pass, const Tensor& like, const Below& below) const {
  ResidualGradient handed;
  const Sublayer* to = below.sublayer;
  if (!to || to->range || (to->after && to->after_sum)) return handed;  // the writer is its own norm, or for other rows
  if (to->dropout) handed.dropped = take(pass.context, "gradients", like.dtype, like.shape);
  if (to->after) return handed;            // the bias precedes that norm
  const LinearLayer& last = to->block->last();
  handed.bias = below.unit ? last.bias_gradient_ahead(pass.context, *below.unit) : last.bias_gradient(pass);
  handed.amax = last.gradient_amax(pass.context, below.unit ? *below.unit : *pass.unit);
  return handed;
}

ResidualGradient Sublayer::backward_rows(UnitBackward& pass, const LayerCall& call, const ResidualGradient& incoming,
                                         Saved& saved, Tensor input, const Below& below) const {
  const StepContext& context = pass.context;
  const ResidualGradient branch = branch_gradient(pass, call, incoming, saved);
  const Tensor dy = branch.dy, dbranch = branch.dropped ? branch.dropped : dy;
  const Tensor x = input ? input : saved.x;
  Block::OutputGradient of_block{dbranch, branch.bias, {}, Fp8Seen::alike, {}};
  if (!before) of_block.input = x, of_block.input_seen = input ? Fp8Seen::alike : Fp8Seen::same, of_block.add = dy;
  Block::InputGradient dx = block->backward(pass, call, of_block, saved.block);
  const LinearLayer& last = block->last();
  leave(pass, last, branch.dropped);
  if (!before) {
    leave(pass, block->first(), x);        // first()'s weight gradient may still read it
    saved.x = {};
    leave(pass, last, dy);
    return {.dy = dx.dx};
  }
  ResidualGradient result = hand(pass, dx.dx, below);
  // The norm's backward recomputes its output, which first() has read, from the norm's input.
  const Tensor normed =
      block->first().needs_input(pass) ? take(context, "norm output", dy.dtype, dy.shape) : Tensor{};
  before->backward(pass, {.dy = dx.dx, .x = x, .mean = saved.before.mean, .rstd = saved.before.rstd, .y = normed,
                          .add = dy, .dropout = result.dropped ? below.sublayer->dropout.of(context, call) : Dropout{},
                          .dropped = result.dropped, .dbias = result.bias.sums,
                          .accumulate_dbias = result.bias.accumulate, .amax = result.amax, .dx = dx.dx});
  result.dy = dx.dx;
  block->weight_gradient(pass, dx, normed, before->rms() ? Fp8Seen::same : Fp8Seen::alike);
  give(context, saved.before);
  if (input) give(context, input); else give(context, saved.x);
  leave(pass, last, dy);                   // last()'s weight gradient may still read it
  return result;
}

ResidualStream Sublayer::forward(const UnitPass& pass, const LayerCall& call, ResidualStream in, Placement placement,
                                 Saved& saved, bool save) const {
  if (!range) return forward_rows(pass, call, in, placement, saved, save);
  const StepContext& context = pass.context;
  const bool kept = in.saved && !in.branch;
  Tensor x = added_up(context, in, "middle residual");
  const LayerCall own = call_of_range(call);
  placement.last = true;
  const ResidualStream out =
      forward_rows(with_rows(pass, own), own, {.x = take_range(context, call, x)}, placement, saved, save);
  if (kept) {                              // another sublayer's backward reads x unchanged
    const Tensor copy = take(context, "middle residual", x.dtype, x.shape);
    context.ops.dropout_add({.x = x, .y = copy}, context.stream);
    x = copy;
  }
  put_range(context, call, out.x, x);
  return {.x = x};
}

void Sublayer::recompute(const UnitPass& pass, const LayerCall& call, ResidualStream in, Placement placement,
                         Saved& saved) const {
  if (!range) return recompute_rows(pass, call, in, placement, saved);
  const StepContext& context = pass.context;
  const bool kept = in.saved && !in.branch;
  Tensor x = added_up(context, in, "middle residual");
  const LayerCall own = call_of_range(call);
  const Tensor rows = take_range(context, call, x);
  if (!kept) give(context, x);
  placement.last = true;
  recompute_rows(with_rows(pass, own), own, {.x = rows}, placement, saved);
}

ResidualGradient Sublayer::backward(UnitBackward& pass, const LayerCall& call, const ResidualGradient& incoming,
                                    Saved& saved, Tensor input, const Below& below) const {
  if (!range) return backward_rows(pass, call, incoming, saved, input, below);
  const StepContext& context = pass.context;
  const LayerCall own = call_of_range(call);
  const Dropout all_rows = std::exchange(pass.rows, with_rows(pass, own).rows);
  const ResidualGradient part =
      backward_rows(pass, own, {.dy = take_range(context, call, incoming.dy)}, saved, input, {});
  pass.rows = all_rows;
  put_range(context, call, part.dy, incoming.dy);
  return {.dy = incoming.dy};
}

LayerCall Sublayer::call_of_range(const LayerCall& call) const {
  LayerCall own = call;
  own.tokens = range->behind ? call.tokens - range->count : range->count;
  own.packing = range->behind ? call.rest_packing : Packing{};
  own.kv_lengths = own.positions = {};
  own.rest_packing = {};
  return own;
}

Tensor Sublayer::take_range(const StepContext& context, const LayerCall& call, const Tensor& x) const {
  const int64_t first = call.batch * range->count;
  const Tensor rows = take(context, "rows of a range", x.dtype, {range->behind ? x.rows() - first : first, x.cols()});
  context.ops.pick_rows(range->of(x, rows, call.tokens, call.packing), context.stream);
  return rows;
}

// Takes ownership of `rows`.
void Sublayer::put_range(const StepContext& context, const LayerCall& call, Tensor rows, const Tensor& x) const {
  context.ops.spread_rows(range->of(x, rows, call.tokens, call.packing), context.stream);
  give(context, rows);
}

RowBlocks RowRange::of(const Tensor& all, const Tensor& rows, int64_t tokens, const Packing& packing) const {
  return {.blocks = all, .rows = rows, .block_rows = tokens, .offset = behind ? count : 0,
          .count = behind ? tokens - count : count, .packing = packing, .fixed = !behind, .keep = true};
}

}  // namespace blipft
