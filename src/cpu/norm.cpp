// LayerNorm and RMSNorm with fused residual addition and dropout.
#include <cmath>

#include "cpu/cpu_ops.h"
#include "ops/ops_check.h"

namespace blipft::cpu {
namespace {

/// Returns the mean that is subtracted from row r; 0 for RMSNorm.
float mean_of(const Tensor& mean, int64_t r) { return mean ? mean.as<const float>()[r] : 0.0f; }

/// dgamma[c] (+)= sum over r of dy[r, c] * xhat[r, c], dbeta[c] (+)= sum over r of dy[r, c].
void parameter_gradients(const NormBackward& args) {
  const int64_t m = args.dy.rows(), n = args.dy.cols();
  const float* rstd = args.rstd.as<const float>();
  for_columns(n, [&](int64_t first, int64_t count) {
    double dgamma[kColumns] = {}, dbeta[kColumns] = {};
    float dy[kColumns], x[kColumns];
    for (int64_t r = 0; r < m; ++r) {
      load(args.dy, r * n + first, count, dy);
      load(args.x, r * n + first, count, x);
      const float mean = mean_of(args.mean, r);
      for (int64_t c = 0; c < count; ++c) {
        dgamma[c] += static_cast<double>(dy[c] * ((x[c] - mean) * rstd[r]));
        dbeta[c] += static_cast<double>(dy[c]);
      }
    }
    for (int64_t c = 0; c < count; ++c) x[c] = static_cast<float>(dgamma[c]);
    store_gradient(x, args.dgamma, first, count, args.accumulate);
    if (!args.dbeta) return;
    for (int64_t c = 0; c < count; ++c) x[c] = static_cast<float>(dbeta[c]);
    store_gradient(x, args.dbeta, first, count, args.accumulate);
  });
}

}  // namespace

void CpuOps::norm_forward(const NormForward& args, Stream) {
  check_args(args);
  if (args.dropout) check_packing(args.dropout.packing, args.dropout.rows_per_sample);
  const int64_t m = args.x.rows(), n = args.x.cols();
  float* gamma = left_.floats(n);
  float* beta = right_.floats(n);
  load(args.gamma, 0, n, gamma);
  const bool rms = !args.beta;
  if (!rms) load(args.beta, 0, n, beta);
  for_each(m, [&](int64_t r) {
    float* x = thread_buffer(0, n);
    load(args.x, r * n, n, x);
    if (args.dropout) apply_dropout_row(args.dropout, r, n, x);
    if (args.residual) {
      float* residual = thread_buffer(1, n);
      load(args.residual, r * n, n, residual);
      add_scaled(x, 1, residual, n);
    }
    if (args.sum) {
      round_to(args.sum.dtype, x, n);  // normalize the values that backward will read
      store(x, args.sum, r * n, n);
    }
    float total = 0, squares = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t c = 0; c < n; ++c) total += x[c];
    const float mean = rms ? 0.0f : total / static_cast<float>(n);
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < n; ++c) squares += (x[c] - mean) * (x[c] - mean);
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(n) + args.eps);
    if (rms) {
      for (int64_t c = 0; c < n; ++c) x[c] *= rstd;
      if (!args.rms.rounds_once) round_to(args.y.dtype, x, n);
      for (int64_t c = 0; c < n; ++c) x[c] *= args.rms.offset + gamma[c];
    } else {
      for (int64_t c = 0; c < n; ++c) x[c] = (x[c] - mean) * rstd * gamma[c] + beta[c];
      args.mean.as<float>()[r] = mean;
    }
    store(x, args.y, r * n, n);
    args.rstd.as<float>()[r] = rstd;
  });
  raise_magnitude(args.amax, args.y);
}

// With xhat = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - xhat mean(g xhat)); RMSNorm has no mean(g).
void CpuOps::norm_backward(const NormBackward& args, Stream) {
  check_args(args);
  if (args.dropout) check_packing(args.dropout.packing, args.dropout.rows_per_sample);
  const int64_t m = args.dy.rows(), n = args.dy.cols();
  if (args.dgamma) parameter_gradients(args);  // before dx, which may overwrite dy
  float* gamma = left_.floats(n);
  load(args.gamma, 0, n, gamma);
  if (!args.mean)
    for (int64_t c = 0; c < n; ++c) gamma[c] += args.rms.offset;
  float* beta = right_.floats(n);
  if (args.beta) load(args.beta, 0, n, beta);
  for_each(m, [&](int64_t r) {
    float* g = thread_buffer(0, n);
    float* xhat = thread_buffer(1, n);
    const float mean = mean_of(args.mean, r), rstd = args.rstd.as<const float>()[r];
    load(args.dy, r * n, n, g);
    load(args.x, r * n, n, xhat);
    for (int64_t c = 0; c < n; ++c) {
      g[c] *= gamma[c];
      xhat[c] = (xhat[c] - mean) * rstd;
    }
    if (args.y) {
      float* y = thread_buffer(2, n);
      std::copy_n(xhat, n, y);
      if (!args.mean && !args.rms.rounds_once) round_to(args.y.dtype, y, n);
      for (int64_t c = 0; c < n; ++c) y[c] = y[c] * gamma[c] + (args.beta ? beta[c] : 0.0f);
      store(y, args.y, r * n, n);
    }
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t c = 0; c < n; ++c) total += g[c];
    const float mean_g = args.mean ? total / static_cast<float>(n) : 0.0f;
    const float mean_gx = dot(g, xhat, n) / static_cast<float>(n);
    for (int64_t c = 0; c < n; ++c) g[c] = rstd * (g[c] - mean_g - xhat[c] * mean_gx);
    if (args.add) {
      load(args.add, r * n, n, xhat);
      add_scaled(g, 1, xhat, n);
    }
    store(g, args.dx, r * n, n);
    if (args.dropped) {
      apply_dropout_row(args.dropout, r, n, g);
      store(g, args.dropped, r * n, n);
    }
  });
  raise_magnitude(args.amax, args.dropped ? args.dropped : args.dx);
  if (!args.dbias) return;
  const float* stored = as_floats(args.dropped ? args.dropped : args.dx, product_);
  column_sums(stored, m, args.dbias, args.accumulate_dbias);
}

}  // namespace blipft::cpu
