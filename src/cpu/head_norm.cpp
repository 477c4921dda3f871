// RMSNorm of the heads of a row, or of other equal groups of its columns.
#include "blipft/head_norm.h"

#include <cmath>

#include "cpu/cpu_ops.h"
#include "ops/ops_check.h"

namespace blipft::cpu {

void CpuOps::head_norm_forward(const HeadNormForward& args, Stream stream) {
  check_args(args);
  const int64_t n = args.x.cols(), size = args.size, groups = n / size;
  float* gamma = left_.floats(size);
  load(args.gamma, 0, size, gamma);
  for_each(args.x.rows(), [&](int64_t r) {
    float* x = thread_buffer(0, n);
    load_row(args.x, r, x);
    for (int64_t g = 0; g < groups; ++g) {
      float* head = x + g * size;
      const float rstd = 1.0f / std::sqrt(dot(head, head, size) / static_cast<float>(size) + args.eps);
      for (int64_t c = 0; c < size; ++c) head[c] *= rstd;
      if (!args.rms.rounds_once) round_to(args.y.dtype, head, size);
      for (int64_t c = 0; c < size; ++c) head[c] *= args.rms.offset + gamma[c];
      args.rstd.as<float>()[r * groups + g] = rstd;
    }
    store_row(x, args.y, r);
  });
  if (args.rotary) rotary(*args.rotary, stream);
}

// With xhat = x rstd and g = dy (offset + gamma): dx = rstd (g - xhat mean(g xhat)), dgamma = sum of dy xhat.
void CpuOps::head_norm_backward(const HeadNormBackward& args, Stream stream) {
  check_args(args);
  if (args.rotary) rotary(*args.rotary, stream);
  const int64_t m = args.x.rows(), n = args.x.cols(), size = args.size, groups = n / size;
  float* gamma = left_.floats(size);
  load(args.gamma, 0, size, gamma);
  const float* rstd = args.rstd.as<const float>();
  if (args.dgamma) {                       // before dx, which may overwrite dy
    float* products = product_.floats(m * groups * size);
    for_each(m, [&](int64_t r) {
      float* dy = thread_buffer(0, n);
      float* x = thread_buffer(1, n);
      load_row(args.dy, r, dy);
      load_row(args.x, r, x);
      for (int64_t c = 0; c < n; ++c) products[r * n + c] = dy[c] * (x[c] * rstd[r * groups + c / size]);
    });
    column_sums({products, size}, m * groups, args.dgamma, args.accumulate);
  }
  for_each(m, [&](int64_t r) {
    float* dy = thread_buffer(0, n);
    float* x = thread_buffer(1, n);
    load_row(args.dy, r, dy);
    load_row(args.x, r, x);
    for (int64_t g = 0; g < groups; ++g) {
      float *dhead = dy + g * size, *xhat = x + g * size;
      const float scale = rstd[r * groups + g];
      for (int64_t c = 0; c < size; ++c) dhead[c] *= args.rms.offset + gamma[c], xhat[c] *= scale;
      const float mean = dot(dhead, xhat, size) / static_cast<float>(size);
      for (int64_t c = 0; c < size; ++c) dhead[c] = scale * (dhead[c] - xhat[c] * mean);
    }
    store_row(dy, args.dx, r);
  });
}

}  // namespace blipft::cpu
