// Implements the common part of all blocks; see block.h.
#include "models/blocks/block.h"

namespace blipft {

void give(const StepContext& context, SavedBlock& saved) {
  for (Tensor* tensor : {&saved.qkv, &saved.kv, &saved.attention, &saved.lse, &saved.inner}) give(context, *tensor);
}

void leave(UnitBackward& pass, const LinearLayer& reader, Tensor tensor) {
  if (reader.has_weight_gradient(pass)) pass.keep(tensor);
  else give(pass.context, tensor);
}

Block::InputGradient Block::input_gradient(UnitBackward& pass, const OutputGradient& incoming, Tensor of_first,
                                           const BiasGradient& bias) const {
  InputGradient result;
  // If requested before the input's gradient, the weight gradient runs in parallel to it.
  if (incoming.input) first().weight_gradient(pass, of_first, incoming.input, bias, incoming.input_seen);
  result.dx = take(pass.context, "gradients", of_first.dtype, {of_first.rows(), first().in});
  first().input_gradient(pass, {.dy = of_first, .add = incoming.add, .dx = result.dx});
  if (incoming.input) leave(pass, first(), of_first);
  else result.of_first = of_first, result.bias = bias;
  return result;
}

void Block::weight_gradient(UnitBackward& pass, InputGradient& gradient, Tensor x, Fp8Seen seen) const {
  first().weight_gradient(pass, gradient.of_first, x, gradient.bias, seen);
  leave(pass, first(), x);
  leave(pass, first(), gradient.of_first);
  gradient.of_first = {};
}

}  // namespace blipft
