// Optimizer updates of a flat shard, and the gradient-clipping coefficient.
#include <algorithm>
#include <cmath>

#include "cpu/cpu_ops.h"
#include "ops/ops_check.h"

namespace blipft::cpu {

namespace {
/// Sums of squares over kSquaresSpan elements each, into `squares` if it is there.
void sum_squares_of_spans(const Tensor& grad, const Tensor& squares) {
  if (!squares) return;
  for_each(squares.numel(), [&](int64_t i) {
    float g[kSquaresSpan];
    const int64_t first = i * kSquaresSpan, count = std::min(kSquaresSpan, grad.numel() - first);
    load(grad, first, count, g);
    squares.as<float>()[i] = static_cast<float>(sum_of(g, count, square));
  });
}
}  // namespace

void CpuOps::clip_coefficient(const Tensor& sum_of_squares, const Tensor& scalars, float max_norm, Stream) {
  check_clip_coefficient(sum_of_squares, scalars);
  const float norm = std::sqrt(sum_of_squares.as<const float>()[0]);
  scalars.as<float>()[kGradNorm] = norm;
  scalars.as<float>()[kClipCoefficient] = max_norm > 0 ? std::min(1.0f, max_norm / (norm + 1e-6f)) : 1.0f;
}

void CpuOps::adamw_update(const AdamWUpdate& args, Stream) {
  check_args(args);
  const float* scalars = args.scalars.as<const float>();
  const float lr = scalars[kLearningRate], clip = scalars[kClipCoefficient];
  sum_squares_of_spans(args.grad, args.squares);
  const float correction1 = scalars[kBiasCorrection1], correction2 = scalars[kBiasCorrection2];
  const Tensor& values = args.master ? args.master : args.param;
  for_chunks(args.param.numel(), [&](int64_t first, int64_t count) {
    float p[kChunk], g[kChunk], m[kChunk], v[kChunk];
    load(values, first, count, p);
    load(args.grad, first, count, g);
    load(args.m, first, count, m);
    load(args.v, first, count, v);
    for (int64_t i = 0; i < count; ++i) {
      const float gradient = g[i] * clip;
      p[i] -= lr * args.weight_decay * p[i];
      m[i] = args.beta1 * m[i] + (1 - args.beta1) * gradient;
      v[i] = args.beta2 * v[i] + (1 - args.beta2) * gradient * gradient;
      p[i] -= lr * (m[i] / correction1) / (std::sqrt(v[i] / correction2) + args.eps);
    }
    if (args.master) store(p, args.master, first, count);
    store(p, args.param, first, count);
    store(m, args.m, first, count);
    store(v, args.v, first, count);
  });
}

void CpuOps::sgd_update(const SgdUpdate& args, Stream) {
  check_args(args);
  sum_squares_of_spans(args.grad, args.squares);
  const float* scalars = args.scalars.as<const float>();
  const float lr = scalars[kLearningRate], clip = scalars[kClipCoefficient];
  const Tensor& values = args.master ? args.master : args.param;
  for_chunks(args.param.numel(), [&](int64_t first, int64_t count) {
    float p[kChunk], g[kChunk], momentum[kChunk];
    load(values, first, count, p);
    load(args.grad, first, count, g);
    for (int64_t i = 0; i < count; ++i) g[i] = g[i] * clip + args.weight_decay * p[i];
    if (args.momentum_buffer) {
      load(args.momentum_buffer, first, count, momentum);
      for (int64_t i = 0; i < count; ++i) g[i] += args.momentum * momentum[i];
      store(g, args.momentum_buffer, first, count);
    }
    for (int64_t i = 0; i < count; ++i) p[i] -= lr * g[i];
    if (args.master) store(p, args.master, first, count);
    store(p, args.param, first, count);
  });
}

}  // namespace blipft::cpu
