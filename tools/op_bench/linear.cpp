// Matrix products: forward, input gradient and weight gradient of each linear layer of BLIP-2.
#include "blip2_layers.h"
#include "blipft/error.h"
#include "op_bench/cases.h"

namespace blipft::bench {

namespace {

void layer_cases(Harness& harness, const LinearLayer& layer) {
  const int64_t m = layer.m, k = layer.k, n = layer.n;
  const double mk = 2.0 * static_cast<double>(m * k), mn = 2.0 * static_cast<double>(m * n),
               nk = 2.0 * static_cast<double>(n * k);
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const bool gelu_out = layer.out == Activation::gelu, gelu_in = layer.in == Activation::gelu;
  const std::string shape = concat(layer.name, " ", dims({m, k, n}));
  const auto weights = [&] { return harness.tensor({n, k}, DType::bf16, 0, 0.02f); };

  harness.run("linear_forward", shape, {mk + nk + mn * (1 + layer.residual + gelu_out), flops}, [&]() -> Harness::Work {
    LinearForward args;
    args.x = harness.tensor({m, k}), args.w = weights();
    if (layer.bias) args.bias = harness.tensor({n});
    if (layer.residual) args.residual = harness.tensor({m, n});
    args.activation = layer.out;
    if (gelu_out) args.pre_activation = harness.tensor({m, n});
    args.y = harness.tensor({m, n});
    return [&harness, args] { harness.ops().linear_forward(args, harness.stream()); };
  }, Sources::memory_alone);

  const int passes = 1 + (layer.in != Activation::none) + gelu_in + (layer.addend != Addend::none);
  const auto input_gradient = [&]() -> Harness::Work {
    LinearBackwardInput args;
    args.dy = harness.tensor({m, n}), args.w = weights(), args.dx = harness.tensor({m, k});
    args.activation = layer.in;
    if (layer.addend == Addend::itself) args.add = args.dx;
    if (layer.addend == Addend::another) args.add = harness.tensor({m, k});
    if (layer.in != Activation::none) args.saved = harness.tensor({m, k}), args.dbias = harness.tensor({k});
    if (gelu_in) args.activated = harness.tensor({m, k});
    return [&harness, args] { harness.ops().linear_backward_input(args, harness.stream()); };
  };
  if (layer.input_gradient)
    harness.run("linear_backward_input", shape, {mn + nk + mk * passes, flops}, input_gradient, Sources::memory_alone);

  const auto weight_gradient = [&](bool dbias) {
    harness.run("linear_backward_weight", shape + (dbias ? " dbias" : ""), {mn + mk + 2 * nk, flops},
                [&]() -> Harness::Work {
      LinearBackwardWeight args;
      args.dy = harness.tensor({m, n}), args.x = harness.tensor({m, k}), args.dw = harness.tensor({n, k});
      if (dbias) args.dbias = harness.tensor({n});
      args.accumulate = true;
      return [&harness, args] { harness.ops().linear_backward_weight(args, harness.stream()); };
    }, Sources::memory_alone);
  };
  weight_gradient(false);
  // Most bias gradients of a step come from other ops: linear_backward_input through an activation, norm_backward,
  // attention_backward. This times the separate pass, which few layers still use.
  if (layer.bias && layer.out == Activation::none) weight_gradient(true);
}

}  // namespace

void linear_cases(Harness& harness, int64_t batch) {
  for (const LinearLayer& layer : blip2_layers(batch)) layer_cases(harness, layer);
}

}  // namespace blipft::bench
