// Implements MLPs, forward and backward; see mlp.h.
#include "models/blocks/mlp.h"

namespace blipft {

namespace {

Block::Flops product_flops(int64_t batch, double tokens, const LinearLayer& first, const LinearLayer& last) {
  return {2 * static_cast<double>(batch) * tokens * static_cast<double>(first.in * first.out + last.in * last.out), 0, 0};
}

// Applies dropout in place.
void drop(const StepContext& context, const Dropout& dropout, const Tensor& x) {
  if (x && dropout) context.ops.dropout_add({.x = x, .dropout = dropout, .y = x}, context.stream);
}

}  // namespace

Tensor Mlp::keep_activated(const UnitPass& pass, Tensor activated) const {
  const StepContext& context = pass.context;
  if (fc2_.needs_input(pass)) return activated;
  const Tensor signs = take(context, "mlp signs", DType::u8, {(activated.numel() + 7) / 8});
  context.ops.pack_signs(activated, signs, context.stream);
  give(context, activated);
  return signs;
}

Tensor Mlp::forward(const UnitPass& pass, const LayerCall& call, Input input, const Output& output, SavedBlock& saved,
                    bool save) const {
  const StepContext& context = pass.context;
  const DType type = input.x.dtype;
  const Shape inner = {input.x.rows(), fc1_.out};
  Tensor activated = take(context, "mlp inner", type, inner);
  Tensor before = keeps_input_of_activation() ? take(context, "mlp inner", type, inner) : Tensor{};
  fc1_.forward(pass, {.x = input.x, .activation = activation_, .pre_activation = before, .y = activated}, input.later);
  if (input.owned) give(context, input.x);
  if (save) saved.inner = before; else give(context, before);
  drop(context, dropout_.of(context, call), activated);
  const Tensor y = take(context, output.name, type, {inner[0], fc2_.out});
  fc2_.forward(pass, {.x = activated, .residual = output.residual, .y = y},
               keeps_input_of_activation() ? Fp8Seen::alike : Fp8Seen::same);
  if (save && !keeps_input_of_activation()) saved.inner = keep_activated(pass, activated);
  else give(context, activated);
  return y;
}

void Mlp::recompute(const UnitPass& pass, const LayerCall& call, Input input, SavedBlock& saved) const {
  const StepContext& context = pass.context;
  const bool before = keeps_input_of_activation();
  const Tensor inner = take(context, "mlp inner", input.x.dtype, {input.x.rows(), fc1_.out});
  fc1_.forward(pass, {.x = input.x, .activation = before ? Activation::none : activation_, .y = inner}, input.later);
  if (input.owned) give(context, input.x);
  if (!before) drop(context, dropout_.of(context, call), inner);
  saved.inner = before ? inner : keep_activated(pass, inner);
}

// With relu, a dropped value is zero, and so is its gradient; a kept value is scaled, as is its gradient.
Block::InputGradient Mlp::backward(UnitBackward& pass, const LayerCall& call, const OutputGradient& incoming,
                                   SavedBlock& saved) const {
  const StepContext& context = pass.context;
  const Tensor& dy = incoming.dy;
  const Shape inner = {dy.rows(), fc1_.out};
  const bool again = keeps_input_of_activation() && fc2_.needs_input(pass);
  const Tensor dinner = take(context, "gradients of mlp inner", dy.dtype, inner);
  const Tensor activated = again ? take(context, "mlp inner", dy.dtype, inner) : Tensor{};
  const Dropout dropout = dropout_.of(context, call);
  const BiasGradient bias = dropout ? BiasGradient{} : fc1_.bias_gradient(pass);  // its sums would precede the mask
  fc2_.input_gradient(pass, {.dy = dy, .activation = activation_, .saved = saved.inner, .activated = activated,
                             .dbias = bias.sums, .accumulate_dbias = bias.accumulate,
                             .amax = dropout || activation_ == Activation::none ? Tensor{} : fc1_.gradient_amax(pass), .dx = dinner});
  drop(context, dropout, dinner);
  drop(context, dropout, activated);
  // saved.inner is fc2's input only with relu, and only if fc2 needs it; else it is gelu's input, or signs.
  const bool reads_saved = !keeps_input_of_activation() && fc2_.needs_input(pass);
  fc2_.weight_gradient(pass, dy, reads_saved ? saved.inner : activated, incoming.bias,
                       reads_saved ? Fp8Seen::same : Fp8Seen::alike);
  pass.keep(activated);
  if (reads_saved) pass.keep(std::exchange(saved.inner, {}));
  give(context, saved.inner);
  return input_gradient(pass, incoming, dinner, bias);
}

Block::Flops Mlp::forward_flops(int64_t batch, double tokens, double) const {
  return product_flops(batch, tokens, fc1_, fc2_);
}

void GatedMlp::recompute(const UnitPass& pass, const LayerCall&, Input input, SavedBlock& saved) const {
  saved.inner = take(pass.context, "gate and up", input.x.dtype, {input.x.rows(), gate_up_.out});
  gate_up_.forward(pass, {.x = input.x, .y = saved.inner}, input.later);
  if (input.owned) give(pass.context, input.x);
}

Tensor GatedMlp::forward(const UnitPass& pass, const LayerCall& call, Input input, const Output& output,
                         SavedBlock& saved, bool save) const {
  const StepContext& context = pass.context;
  const DType type = input.x.dtype;
  const int64_t rows = input.x.rows();
  recompute(pass, call, input, saved);
  ScopedTensor inner(context, "mlp inner", type, {rows, down_.in});
  const Dropout dropout = dropout_.of(context, call);
  context.ops.swiglu_forward({.activation = activation_, .gate_up = saved.inner, .y = inner,
                              .amax = dropout ? Tensor{} : down_.input_amax(pass)}, context.stream);
  drop(context, dropout, inner);
  if (!save) give(context, saved.inner);
  const Tensor y = take(context, output.name, type, {rows, down_.out});
  down_.forward(pass, {.x = inner, .residual = output.residual, .y = y}, Fp8Seen::same);
  return y;
}

Block::InputGradient GatedMlp::backward(UnitBackward& pass, const LayerCall& call, const OutputGradient& incoming,
                                        SavedBlock& saved) const {
  const StepContext& context = pass.context;
  const Tensor& dy = incoming.dy;
  const Shape width = {dy.rows(), down_.in};
  const Dropout dropout = dropout_.of(context, call);
  const Tensor gates = std::exchange(saved.inner, {});  // reused for its gradient
  const Tensor inner = down_.needs_input(pass) ? take(context, "mlp inner", dy.dtype, width) : Tensor{};
  {
    ScopedTensor dinner(context, "gradients of mlp inner", dy.dtype, width);
    down_.input_gradient(pass, {.dy = dy, .dx = dinner});
    drop(context, dropout, dinner);
    context.ops.swiglu_backward(
        {.activation = activation_, .gate_up = gates, .y = inner, .dy = dinner, .dgate_up = gates,
         .amax = gate_up_.gradient_amax(pass)}, context.stream);
    drop(context, dropout, inner);
  }
  down_.weight_gradient(pass, dy, inner, incoming.bias, Fp8Seen::same);
  leave(pass, down_, inner);
  return input_gradient(pass, incoming, gates, {});
}

Block::Flops GatedMlp::forward_flops(int64_t batch, double tokens, double) const {
  return product_flops(batch, tokens, gate_up_, down_);
}

}  // namespace blipft
