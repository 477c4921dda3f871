// Optimizer updates of a flat shard, and the gradient clipping coefficient.
#include <algorithm>
#include <cmath>

#include "cpu/cpu_ops.h"
#include "cpu/quantize.h"
#include "ops/ops_check.h"
#include "ops/stochastic_rounding.h"

namespace blipft::cpu {

namespace {
/// Writes the sums of squares of each span of kSquaresSpan elements to `squares`, if given.
void sum_squares_of_spans(const Tensor& grad, const Tensor& squares) {
  if (!squares) return;
  for_each(squares.numel(), [&](int64_t i) {
    float g[kSquaresSpan];
    const int64_t first = i * kSquaresSpan, count = std::min(kSquaresSpan, grad.numel() - first);
    load(grad, first, count, g);
    squares.as<float>()[i] = static_cast<float>(sum_of(g, count, square));
  });
}

/// Stores elements [first, first + count) of the parameters and of their masters, if given.
template <class Update>
void store_param(const float* p, const Update& args, int64_t first, int64_t count) {
  if (args.master) store(p, args.master, first, count);
  if (!args.rounding.stochastic) return store(p, args.param, first, count);
  const Rounding& rounding = args.rounding;
  const auto step = static_cast<uint32_t>(args.scalars.template as<const float>()[kStepNumber]);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t element = rounding.first + first + i;
    const Philox4 words = rounding_words(rounding.seed, rounding.unit, step, element);
    args.param.template as<uint16_t>()[first + i] = round_stochastically(p[i], rounding_bits(words, element));
  }
}

/// Updates elements [first, first + count), count <= kMax: `rule` gets the values and gradients in f32 and overwrites
/// the values.
template <int64_t kMax, class Update, class Rule>
void update_part(const Update& args, int64_t first, int64_t count, const Rule& rule) {
  float p[kMax], g[kMax];
  load(args.master ? args.master : args.param, first, count, p);
  load(args.grad, first, count, g);
  rule(p, g);
  store_param(p, args, first, count);
}

/// Updates all elements; calls rule(first, count, p, g) for each chunk.
template <class Update, class Rule>
void update_in_chunks(const Update& args, const Rule& rule) {
  for_chunks(args.param.numel(), [&](int64_t first, int64_t count) {
    update_part<kChunk>(args, first, count, [&](float* p, float* g) { rule(first, count, p, g); });
  });
}

bool is_skipped(const Tensor& scalars) { return scalars.as<const float>()[kSkipUpdate] != 0; }

struct AdamWNumbers {
  float lr, clip, correction1, correction2, beta1, beta2, eps, weight_decay;

  template <class Update>
  static AdamWNumbers of(const Update& args) {
    const float* scalars = args.scalars.template as<const float>();
    return {.lr = scalars[kLearningRate], .clip = scalars[kClipCoefficient], .correction1 = scalars[kBiasCorrection1],
            .correction2 = scalars[kBiasCorrection2], .beta1 = args.beta1, .beta2 = args.beta2, .eps = args.eps,
            .weight_decay = args.weight_decay};
  }
};

/// AdamW in f32. It is one function so that f32 and quantized moments are updated by the same instructions.
[[gnu::noinline]] void adamw(const AdamWNumbers& a, int64_t count, const float* g, float* p, float* m, float* v) {
  for (int64_t i = 0; i < count; ++i) {
    const float gradient = g[i] * a.clip;
    p[i] -= a.lr * a.weight_decay * p[i];
    m[i] = a.beta1 * m[i] + (1 - a.beta1) * gradient;
    v[i] = a.beta2 * v[i] + (1 - a.beta2) * gradient * gradient;
    p[i] -= a.lr * (m[i] / a.correction1) / (std::sqrt(v[i] / a.correction2) + a.eps);
  }
}
}  // namespace

void CpuOps::clip_coefficient(const Tensor& sum_of_squares, const Tensor& scalars, float max_norm, Stream) {
  check_clip_coefficient(sum_of_squares, scalars);
  const float norm = std::sqrt(sum_of_squares.as<const float>()[0]);
  scalars.as<float>()[kGradNorm] = norm;
  scalars.as<float>()[kSkipUpdate] = std::isfinite(norm) ? 0.0f : 1.0f;
  scalars.as<float>()[kClipCoefficient] = max_norm > 0 ? std::min(1.0f, max_norm / (norm + 1e-6f)) : 1.0f;
}

void CpuOps::adamw_update(const AdamWUpdate& args, Stream) {
  check_args(args);
  if (is_skipped(args.scalars)) return;
  sum_squares_of_spans(args.grad, args.squares);
  const AdamWNumbers numbers = AdamWNumbers::of(args);
  update_in_chunks(args, [&](int64_t first, int64_t count, float* p, const float* g) {
    float m[kChunk], v[kChunk];
    load(args.m, first, count, m);
    load(args.v, first, count, v);
    adamw(numbers, count, g, p, m, v);
    store(m, args.m, first, count);
    store(v, args.v, first, count);
  });
}

void CpuOps::sgd_update(const SgdUpdate& args, Stream) {
  check_args(args);
  if (is_skipped(args.scalars)) return;
  sum_squares_of_spans(args.grad, args.squares);
  const float* scalars = args.scalars.as<const float>();
  const float lr = scalars[kLearningRate], clip = scalars[kClipCoefficient];
  update_in_chunks(args, [&](int64_t first, int64_t count, float* p, float* g) {
    for (int64_t i = 0; i < count; ++i) g[i] = g[i] * clip + args.weight_decay * p[i];
    if (args.momentum_buffer) {
      float momentum[kChunk];
      load(args.momentum_buffer, first, count, momentum);
      for (int64_t i = 0; i < count; ++i) g[i] += args.momentum * momentum[i];
      store(g, args.momentum_buffer, first, count);
    }
    for (int64_t i = 0; i < count; ++i) p[i] -= lr * g[i];
  });
}

void CpuOps::lion_update(const LionUpdate& args, Stream) {
  check_args(args);
  if (is_skipped(args.scalars)) return;
  sum_squares_of_spans(args.grad, args.squares);
  const float* scalars = args.scalars.as<const float>();
  const float lr = scalars[kLearningRate], clip = scalars[kClipCoefficient];
  update_in_chunks(args, [&](int64_t first, int64_t count, float* p, const float* g) {
    float m[kChunk];
    load(args.m, first, count, m);
    for (int64_t i = 0; i < count; ++i) {
      const float gradient = g[i] * clip;
      const float mixed = args.beta1 * m[i] + (1 - args.beta1) * gradient;
      const float sign = static_cast<float>(mixed > 0) - static_cast<float>(mixed < 0);
      p[i] -= lr * args.weight_decay * p[i];
      p[i] -= lr * sign;
      m[i] = args.beta2 * m[i] + (1 - args.beta2) * gradient;
    }
    store(m, args.m, first, count);
  });
}

void CpuOps::adamw8bit_update(const AdamW8bitUpdate& args, Stream) {
  check_args(args);
  if (is_skipped(args.scalars)) return;
  sum_squares_of_spans(args.grad, args.squares);
  const AdamWNumbers numbers = AdamWNumbers::of(args);
  const int64_t n = args.param.numel(), size = code_block(args.m.book);
  for_each((n + size - 1) / size, [&](int64_t block) {
    const int64_t first = block * size, count = std::min(size, n - first);
    update_part<kMaxEntries>(args, first, count, [&](float* p, const float* g) {
      float m[kMaxEntries], v[kMaxEntries];
      decode_block(args.m, block, m, count);
      decode_block(args.v, block, v, count);
      adamw(numbers, count, g, p, m, v);
      encode_block(m, count, args.m, block);
      encode_block(v, count, args.v, block);
    });
  });
}

}  // namespace blipft::cpu
