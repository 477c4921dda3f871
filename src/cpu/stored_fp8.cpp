// Matrices that are stored in fp8.
#include <algorithm>

#include "cpu/cpu_ops.h"
#include "ops/ops_check.h"

namespace blipft::cpu {

namespace {

constexpr int64_t kPiece = 4096;           // elements of a chunk of one thread

// Calls f(first, count) for chunks of n elements, in parallel.
template <class F>
void for_pieces(int64_t n, F f) {
  for_each((n + kPiece - 1) / kPiece, [&](int64_t i) { f(i * kPiece, std::min(kPiece, n - i * kPiece)); });
}

}  // namespace

void CpuOps::encode_fp8(const Tensor& values, const Fp8Matrix& to, Stream) {
  check_stored_fp8("encode_fp8", values, to);
  const float factor = 1 / *to.scale.as<const float>();  // exact: a power of two
  for_pieces(values.numel(), [&](int64_t first, int64_t count) {
    float* const numbers = thread_buffer(0, count);
    load(values, first, count, numbers);
    auto* const quantized = to.quantized.as<uint8_t>() + first;
    for (int64_t i = 0; i < count; ++i) quantized[i] = float_to_fp8(numbers[i] * factor, DType::f8e4m3);
  });
}

void CpuOps::decode_fp8(const Fp8Matrix& from, const Tensor& values, Stream) {
  check_stored_fp8("decode_fp8", values, from);
  const float scale = *from.scale.as<const float>();
  for_pieces(values.numel(), [&](int64_t first, int64_t count) {
    float* const numbers = thread_buffer(0, count);
    load(from.quantized, first, count, numbers);
    for (int64_t i = 0; i < count; ++i) numbers[i] *= scale;
    store(numbers, values, first, count);
  });
}

void CpuOps::raise_fp8_scale(const Tensor& x, const Tensor& largest, const Tensor& scale, Stream) {
  check_raise_fp8_scale(x, largest, scale);
  uint32_t maximum = bits_from_float(*largest.as<const float>());
  const int64_t n = x.numel();
#pragma omp parallel for reduction(max : maximum)
  for (int64_t first = 0; first < n; first += kPiece) {
    const int64_t count = std::min(kPiece, n - first);
    float* const numbers = thread_buffer(0, count);
    load(x, first, count, numbers);
    for (int64_t i = 0; i < count; ++i) maximum = std::max(maximum, bits_from_float(numbers[i]) & 0x7fffffffu);
  }
  *largest.as<float>() = float_from_bits(maximum);
  *scale.as<float>() = fp8_scale(maximum, DType::f8e4m3);
}

void CpuOps::transpose_fp8(const Tensor& quantized, const Tensor& transposed, Stream) {
  check_transpose_fp8(quantized, transposed);
  const int64_t m = quantized.rows(), n = quantized.cols(), columns = fp8_columns(m);
  const auto* const from = quantized.as<const uint8_t>();
  auto* const to = transposed.as<uint8_t>();
  for_each(n, [&](int64_t c) {
    for (int64_t r = 0; r < columns; ++r) to[c * columns + r] = r < m ? from[r * n + c] : uint8_t{0};
  });
}

}  // namespace blipft::cpu
