// Element-wise ops, sums, dropout, activations and random numbers.
#include <cmath>
#include <vector>

#include "cpu/cpu_ops.h"
#include "ops/normal.h"
#include "ops/ops_check.h"

namespace blipft::cpu {
namespace {

/// Computes out[0] (+)= sum of f(x[i]) in f64. Each chunk is summed separately; then the chunk sums are added in order.
template <class F>
void reduce(const Tensor& x, const Tensor& out, bool accumulate, F f) {
  std::vector<double> partial(static_cast<size_t>((x.numel() + kChunk - 1) / kChunk));
  for_chunks(x.numel(), [&](int64_t first, int64_t count) {
    float values[kChunk];
    load(x, first, count, values);
    partial[static_cast<size_t>(first / kChunk)] = sum_of(values, count, f);
  });
  double total = 0;
  for (double value : partial) total += value;
  float* result = out.as<float>();
  *result = static_cast<float>(accumulate ? total + static_cast<double>(*result) : total);
}

constexpr float kSqrtHalf = 0.70710678118654752f, kInvSqrtTwoPi = 0.39894228040143268f;

/// An activation and its derivative.
struct SlopedValue {
  float value, slope;
};

// x (1 + tanh(kTanhScale (x + kTanhCube x^3))) / 2, kTanhScale = sqrt(2 / pi)
SlopedValue gelu_tanh(float x) {
  constexpr float kTanhScale = 0.79788456080286536f, kTanhCube = 0.044715f;
  const float t = std::tanh(kTanhScale * (x + kTanhCube * x * x * x));
  const float inner = kTanhScale * (1.0f + 3.0f * kTanhCube * x * x);
  return {0.5f * x * (1.0f + t), 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner};
}

}  // namespace

void check_packing(const Packing& packing, int64_t maximum) {
  if (!packing) return;
  const int32_t* starts = packing.starts.as<const int32_t>();
  const int32_t* padded_rows = packing.padded_rows.as<const int32_t>();
  const int64_t samples = packing.starts.numel() - 1, rows = packing.padded_rows.numel();
  BLIPFT_CHECK(starts[0] == 0 && starts[samples] == rows, "packing.starts goes from ", starts[0], " to ",
               starts[samples], ", expected from 0 to ", rows);
  for (int64_t b = 0; b < samples; ++b) {
    BLIPFT_CHECK(starts[b] <= starts[b + 1] && starts[b + 1] - starts[b] <= maximum, "packed sample ", b, " has rows ",
                 starts[b], " up to ", starts[b + 1], ", expected 0 to ", maximum, " rows");
    // If a start lies beyond the end, a later start is smaller than its predecessor, and the check above reports it.
    for (int64_t r = starts[b]; r < std::min<int64_t>(starts[b + 1], rows); ++r)
      BLIPFT_CHECK(padded_rows[r] == b * maximum + r - starts[b], "packing.padded_rows[", r, "] is ", padded_rows[r],
                   ", expected ", b * maximum + r - starts[b]);
  }
}

void apply_dropout(const Dropout& dropout, int64_t sample, int64_t first, int64_t count, float* values) {
  if (dropout.p == 0) {
    for (int64_t i = 0; i < count; ++i) values[i] *= dropout.scale;
    return;
  }
  const int64_t key = dropout.sample_keys.as<const int64_t>()[sample];
  const uint32_t threshold = dropout_threshold(dropout.p);
  const float scale = dropout.scale / (1.0f - dropout.p);
  for (int64_t i = 0; i < count;) {
    const auto element = static_cast<uint64_t>(first + i);
    const DropoutBlock block(dropout.seed, dropout.site, key, element);
    for (uint32_t e = static_cast<uint32_t>(element) % kDropoutBlock; e < kDropoutBlock && i < count; ++e, ++i)
      values[i] = block.keeps(e, threshold) ? values[i] * scale : 0.0f;
  }
}

void activate_values(Activation activation, float* values, int64_t count) {
  if (activation == Activation::relu)
    for (int64_t i = 0; i < count; ++i) values[i] = values[i] < 0 ? 0.0f : values[i];  // keeps NaNs
  else if (activation == Activation::gelu)
    for (int64_t i = 0; i < count; ++i) values[i] = 0.5f * values[i] * (1.0f + std::erf(values[i] * kSqrtHalf));
  else if (activation == Activation::gelu_tanh)
    for (int64_t i = 0; i < count; ++i) values[i] = gelu_tanh(values[i]).value;
}

void activation_gradient(Activation activation, const float* saved, float* gradient, int64_t count) {
  if (activation == Activation::relu)
    for (int64_t i = 0; i < count; ++i) gradient[i] = saved[i] > 0 ? gradient[i] : 0.0f;
  else if (activation == Activation::gelu)
    for (int64_t i = 0; i < count; ++i) {
      const float x = saved[i];  // d/dx x Phi(x) = Phi(x) + x phi(x)
      gradient[i] *= 0.5f * (1.0f + std::erf(x * kSqrtHalf)) + x * kInvSqrtTwoPi * std::exp(-0.5f * x * x);
    }
  else if (activation == Activation::gelu_tanh)
    for (int64_t i = 0; i < count; ++i) gradient[i] *= gelu_tanh(saved[i]).slope;
}

void unpack_signs(const Tensor& signs, int64_t first, int64_t count, float* values) {
  const auto* bytes = signs.as<const uint8_t>();
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(bytes[(first + i) / 8] >> (first + i) % 8 & 1);
}

const float* as_floats(const Tensor& t, Scratch& scratch) {
  if (t.dtype == DType::f32) return t.as<const float>();
  float* out = scratch.floats(t.numel());
  for_chunks(t.numel(), [&](int64_t first, int64_t count) { load(t, first, count, out + first); });
  return out;
}

FloatRows as_floats(const MatrixView& view, Scratch& scratch) {
  if (view.dtype == DType::f32) return {view.as<const float>(), view.row_stride};
  float* values = scratch.floats(view.numel());
  for_each(view.rows(), [&](int64_t r) { load_row(view, r, values + r * view.cols()); });
  return {values, view.cols()};
}

void column_sums(const FloatRows& matrix, int64_t rows, const Tensor& out, bool accumulate) {
  for_columns(out.numel(), [&](int64_t first, int64_t count) {
    double total[kColumns] = {};
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < count; ++c) total[c] += static_cast<double>(matrix.data[r * matrix.stride + first + c]);
    float values[kColumns];
    for (int64_t c = 0; c < count; ++c) values[c] = static_cast<float>(total[c]);
    store_gradient(values, out, first, count, accumulate);
  });
}

void CpuOps::activate(const Tensor& x, const Tensor& y, Activation activation, Stream) {
  check_activate(x, y, activation);
  for_chunks(x.numel(), [&](int64_t first, int64_t count) {
    float values[kChunk];
    load(x, first, count, values);
    activate_values(activation, values, count);
    store(values, y, first, count);
  });
}

void CpuOps::pack_signs(const Tensor& x, const Tensor& signs, Stream) {
  check_pack_signs(x, signs);
  static_assert(kChunk % 8 == 0);
  for_chunks(x.numel(), [&](int64_t first, int64_t count) {
    float values[kChunk];
    load(x, first, count, values);
    for (int64_t i = 0; i < count; i += 8) {
      unsigned bits = 0;
      for (int64_t j = 0; j < std::min<int64_t>(8, count - i); ++j) bits |= unsigned{values[i + j] > 0} << j;
      signs.as<uint8_t>()[(first + i) / 8] = static_cast<uint8_t>(bits);
    }
  });
}

void CpuOps::dropout_add(const DropoutAdd& args, Stream) {
  check_args(args);
  if (args.dropout) check_packing(args.dropout.packing, args.dropout.rows_per_sample);
  const int64_t cols = args.x.cols();
  for_each(args.x.rows(), [&](int64_t r) {
    float* y = thread_buffer(0, cols);
    load(args.x, r * cols, cols, y);
    if (args.dropout) apply_dropout_row(args.dropout, r, cols, y);
    if (args.residual) {
      float* residual = thread_buffer(1, cols);
      load(args.residual, r * cols, cols, residual);
      add_scaled(y, 1, residual, cols);
    }
    store(y, args.y, r * cols, cols);
  });
}

void CpuOps::sum(const Tensor& x, const Tensor& out, bool accumulate, Stream) {
  check_sum(x, out);
  reduce(x, out, accumulate, [](double value) { return value; });
}

void CpuOps::sum_squares(const Tensor& x, const Tensor& out, bool accumulate, Stream) {
  check_sum_squares(x, out);
  reduce(x, out, accumulate, square);
}

void CpuOps::cast(const Tensor& from, const Tensor& to, Stream) {
  check_cast(from, to);
  for_chunks(from.numel(), [&](int64_t first, int64_t count) {
    float values[kChunk];
    load(from, first, count, values);
    store(values, to, first, count);
  });
}

void CpuOps::cap(const Tensor& x, float cap, Stream) {
  check_cap(x, cap);
  for_chunks(x.numel(), [&](int64_t first, int64_t count) {
    float values[kChunk];
    load(x, first, count, values);
    for (int64_t i = 0; i < count; ++i) values[i] = cap * std::tanh(values[i] / cap);
    store(values, x, first, count);
  });
}

void CpuOps::scale(const Tensor& x, float factor, Stream) {
  check_scale(x);
  for_chunks(x.numel(), [&](int64_t first, int64_t count) {
    float values[kChunk];
    load(x, first, count, values);
    for (int64_t i = 0; i < count; ++i) values[i] *= factor;
    store(values, x, first, count);
  });
}

void CpuOps::add(const Tensor& from, const Tensor& to, Stream) {
  check_add(from, to);
  for_chunks(from.numel(), [&](int64_t first, int64_t count) {
    float values[kChunk];
    load(from, first, count, values);
    store_gradient(values, to, first, count, true);
  });
}

void CpuOps::fill_normal(const Tensor& x, uint64_t seed, uint32_t stream_id, int64_t first, float mean, float std,
                         Stream) {
  check_fill_normal(x, first);
  for_chunks(x.numel(), [&](int64_t begin, int64_t count) {
    float values[kChunk];
    for (int64_t i = 0; i < count; ++i) values[i] = mean + std * normal_at(seed, stream_id, first + begin + i);
    store(values, x, begin, count);
  });
}

void CpuOps::fill_uniform(const Tensor& x, uint64_t seed, uint32_t stream_id, int64_t first, float bound, Stream) {
  check_fill_normal(x, first);
  for_chunks(x.numel(), [&](int64_t begin, int64_t count) {
    float values[kChunk];
    for (int64_t i = 0; i < count; ++i) values[i] = bound * uniform_at(seed, stream_id, first + begin + i);
    store(values, x, begin, count);
  });
}

void CpuOps::fill(const Tensor& x, float value, Stream) {
  check_fill(x);
  for_chunks(x.numel(), [&](int64_t first, int64_t count) {
    float values[kChunk];
    std::fill_n(values, count, value);
    store(values, x, first, count);
  });
}

void CpuOps::fill_i32(const Tensor& x, int32_t value, Stream) {
  check_fill_i32(x);
  std::fill_n(x.as<int32_t>(), x.numel(), value);
}

namespace {

/// The value and the derivative of a gate's activation at g.
SlopedValue gate_value(GateActivation activation, float g) {
  switch (activation) {
    case GateActivation::relu: return {g < 0 ? 0.0f : g, g > 0 ? 1.0f : 0.0f};
    case GateActivation::gelu: {           // g Phi(g)
      const float phi = 0.5f * (1.0f + std::erf(g * kSqrtHalf));
      return {g * phi, phi + g * kInvSqrtTwoPi * std::exp(-0.5f * g * g)};
    }
    case GateActivation::gelu_tanh: return gelu_tanh(g);
    case GateActivation::silu: break;      // is computed in separate loops
  }
  return {};
}

}  // namespace

void CpuOps::swiglu_forward(const Swiglu& args, Stream) {
  check_args(args);
  const int64_t f = args.y.cols();
  for_each(args.y.rows(), [&](int64_t r) {
    float* gate = thread_buffer(0, 2 * f);
    const float* up = gate + f;
    load(args.gate_up, r * 2 * f, 2 * f, gate);
    if (args.activation != GateActivation::silu)
      for (int64_t c = 0; c < f; ++c) gate[c] = gate_value(args.activation, gate[c]).value * up[c];
    else
      for (int64_t c = 0; c < f; ++c) gate[c] *= 1.0f / (1.0f + std::exp(-gate[c])) * up[c];
    store(gate, args.y, r * f, f);
  });
  raise_magnitude(args.amax, args.y);
}

// silu'(g) = s + g s (1 - s) with s = 1 / (1 + exp(-g))
void CpuOps::swiglu_backward(const Swiglu& args, Stream) {
  check_backward_args(args);
  const int64_t f = args.dy.cols();
  for_each(args.dy.rows(), [&](int64_t r) {
    float* gate = thread_buffer(0, 2 * f);
    float* up = gate + f;
    float* dy = thread_buffer(1, f);
    float* y = thread_buffer(2, f);
    load(args.gate_up, r * 2 * f, 2 * f, gate);
    load(args.dy, r * f, f, dy);
    for (int64_t c = 0; c < f && args.activation != GateActivation::silu; ++c) {
      const SlopedValue of = gate_value(args.activation, gate[c]);
      y[c] = of.value * up[c];
      gate[c] = dy[c] * up[c] * of.slope;
      up[c] = dy[c] * of.value;
    }
    for (int64_t c = 0; c < f && args.activation == GateActivation::silu; ++c) {
      const float g = gate[c], s = 1.0f / (1.0f + std::exp(-g)), silu = g * s;
      y[c] = g * (s * up[c]);
      gate[c] = dy[c] * up[c] * (s + silu * (1.0f - s));
      up[c] = dy[c] * silu;
    }
    if (args.y) store(y, args.y, r * f, f);
    store(gate, args.dgate_up, r * 2 * f, 2 * f);
  });
  raise_magnitude(args.amax, args.dgate_up);
}

}  // namespace blipft::cpu
