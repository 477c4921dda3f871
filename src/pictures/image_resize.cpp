// resize_bicubic: the separable antialiased bicubic resampling of PIL's Image.resize, bit-identical.
//
// Each output pixel is a weighted sum of input pixels in a window of 2 * support; support grows with the scale when the
// picture shrinks. Weights are computed in double, normalised, and rounded to 22-bit fixed point. The first pass rounds
// to 8 bits before the second pass.
#include "pictures/image_resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "blipft/error.h"

namespace blipft {
namespace {

constexpr int precision_bits = 32 - 8 - 2;  // 8 for the pixel, 2 for intermediate sums of weights that exceed 1

/// The weights of all output positions along one axis.
struct Weights {
  struct Window {
    int64_t first = 0, count = 0;
  };
  int64_t stride = 0;             ///< allocated weights per output position
  std::vector<Window> windows;    // [out]
  std::vector<int32_t> values;    // [out, stride]
};

// Contraction to fused multiply-adds would change the last bit of weights, and therefore a few pixels.
#define BLIPFT_EXACT_DOUBLE __attribute__((optimize("fp-contract=off")))

/// Keys' cubic convolution kernel with a = -0.5.
BLIPFT_EXACT_DOUBLE double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

BLIPFT_EXACT_DOUBLE Weights make_weights(int64_t in, int64_t out) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double filter_scale = scale < 1.0 ? 1.0 : scale;
  const double support = 2.0 * filter_scale;
  const double inverse = 1.0 / filter_scale;
  Weights weights;
  weights.stride = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  weights.windows.resize(static_cast<size_t>(out));
  weights.values.assign(static_cast<size_t>(out * weights.stride), 0);
  std::vector<double> row(static_cast<size_t>(weights.stride));
  for (int64_t i = 0; i < out; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0);
    const int64_t last = std::min<int64_t>(static_cast<int64_t>(center + support + 0.5), in);
    double sum = 0;
    for (int64_t k = 0; k < last - first; ++k) {
      row[k] = bicubic((static_cast<double>(k + first) - center + 0.5) * inverse);
      sum += row[k];
    }
    for (int64_t k = 0; k < last - first; ++k) {
      if (sum != 0.0) row[k] /= sum;
      const double fixed = row[k] * (1 << precision_bits);
      weights.values[i * weights.stride + k] = static_cast<int32_t>(row[k] < 0 ? -0.5 + fixed : 0.5 + fixed);
    }
    weights.windows[i] = {first, last - first};
  }
  return weights;
}

typedef int32_t Int8 __attribute__((vector_size(32)));

/// Converts eight bytes to eight int32 values.
Int8 widen(uint64_t bytes) {
#if defined(__AVX2__)
  return reinterpret_cast<Int8>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes))));
#else
  typedef uint8_t Byte8 __attribute__((vector_size(8)));
  return __builtin_convertvector(reinterpret_cast<Byte8>(bytes), Int8);
#endif
}

template <class T>
T load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

uint8_t clip(int32_t sum) {
  sum >>= precision_bits;
  return static_cast<uint8_t>(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

/// Processes two rows at once. `in` are u8 [in_width, 3], each followed by one more readable byte; `out` are u8
/// [out_width, 3].
void horizontal_rows(const uint8_t* in0, const uint8_t* in1, const Weights& weights, uint8_t* out0, uint8_t* out1) {
  constexpr int32_t half = 1 << (precision_bits - 1);
  for (size_t x = 0; x < weights.windows.size(); ++x, out0 += 3, out1 += 3) {
    const Weights::Window window = weights.windows[x];
    const int32_t* weight = weights.values.data() + x * weights.stride;
    const uint8_t *pixel0 = in0 + window.first * 3, *pixel1 = in1 + window.first * 3;
    Int8 sum = {half, half, half, 0, half, half, half, 0};
    for (int64_t k = 0; k < window.count; ++k) {
      // For each of the two rows: red, green, blue, and one byte of the next pixel, which is ignored.
      const uint64_t first = load<uint32_t>(pixel0 + 3 * k), second = load<uint32_t>(pixel1 + 3 * k);
      sum += widen(first | second << 32) * weight[k];
    }
    out0[0] = clip(sum[0]), out0[1] = clip(sum[1]), out0[2] = clip(sum[2]);
    out1[0] = clip(sum[4]), out1[1] = clip(sum[5]), out1[2] = clip(sum[6]);
  }
}

/// Computes one output row from `count` input rows of `bytes` values each; `in` points to the first input row.
void vertical_row(const uint8_t* in, int64_t bytes, const int32_t* weight, int64_t count, uint8_t* out) {
  constexpr int32_t half = 1 << (precision_bits - 1);
  int64_t x = 0;
  for (; x + 8 <= bytes; x += 8) {
    Int8 sum = {half, half, half, half, half, half, half, half};
    for (int64_t k = 0; k < count; ++k) {
      sum += widen(load<uint64_t>(in + k * bytes + x)) * weight[k];
    }
    for (int64_t i = 0; i < 8; ++i) out[x + i] = clip(sum[i]);
  }
  for (; x < bytes; ++x) {
    int32_t sum = half;
    for (int64_t k = 0; k < count; ++k) sum += in[k * bytes + x] * weight[k];
    out[x] = clip(sum);
  }
}

/// u8 [height, in_width, 3] -> u8 [height, out_width, 3].
void horizontal_pass(const uint8_t* in, int64_t height, int64_t in_width, int64_t out_width, uint8_t* out) {
  const Weights weights = make_weights(in_width, out_width);
  // The last row of `in` has no readable byte after it, and with an odd height it has no partner. Therefore the last
  // rows are copied.
  const int64_t pairs = (height - 1) / 2;
  for (int64_t y = 0; y < 2 * pairs; y += 2)
    horizontal_rows(in + y * in_width * 3, in + (y + 1) * in_width * 3, weights, out + y * out_width * 3,
                    out + (y + 1) * out_width * 3);
  std::vector<uint8_t> row(static_cast<size_t>(in_width * 3 + 1)), unused(static_cast<size_t>(out_width * 3));
  for (int64_t y = 2 * pairs; y < height; ++y) {
    std::memcpy(row.data(), in + y * in_width * 3, static_cast<size_t>(in_width * 3));
    horizontal_rows(row.data(), row.data(), weights, out + y * out_width * 3, unused.data());
  }
}

/// u8 [in_height, width, 3] -> u8 [out_height, width, 3].
void vertical_pass(const uint8_t* in, int64_t width, int64_t in_height, int64_t out_height, uint8_t* out) {
  const Weights weights = make_weights(in_height, out_height);
  for (int64_t y = 0; y < out_height; ++y) {
    const Weights::Window window = weights.windows[y];
    vertical_row(in + window.first * width * 3, width * 3, weights.values.data() + y * weights.stride, window.count,
                 out + y * width * 3);
  }
}

/// Returns true if Pillow 13 runs the vertical pass first: if the height loses more than twice as many pixels as the
/// width (older versions never do). The order affects the last bits, because the first pass rounds to 8 bits.
bool vertical_first(int64_t in_width, int64_t in_height, int64_t out_width, int64_t out_height) {
  return in_height > out_height && 2 * (in_width - out_width) < in_height - out_height;
}

}  // namespace

void resize_bicubic_into(const Image& image, int64_t width, int64_t height, uint8_t* out) {
  BLIPFT_CHECK(width > 0 && height > 0 && image.width > 0 && image.height > 0, "resize of ", image.width, " x ",
               image.height, " to ", width, " x ", height);
  BLIPFT_CHECK(static_cast<int64_t>(image.rgb.size()) == image.width * image.height * 3, image.rgb.size(),
               " bytes for ", image.width, " x ", image.height);
  const uint8_t* in = image.rgb.data();
  // PIL skips the pass along an axis whose size does not change.
  if (width == image.width && height == image.height) {
    std::memcpy(out, in, image.rgb.size());
  } else if (height == image.height) {
    horizontal_pass(in, height, image.width, width, out);
  } else if (width == image.width) {
    vertical_pass(in, width, image.height, height, out);
  } else if (vertical_first(image.width, image.height, width, height)) {
    std::vector<uint8_t> between(static_cast<size_t>(height * image.width * 3));
    vertical_pass(in, image.width, image.height, height, between.data());
    horizontal_pass(between.data(), height, image.width, width, out);
  } else {
    std::vector<uint8_t> between(static_cast<size_t>(image.height * width * 3));
    horizontal_pass(in, image.height, image.width, width, between.data());
    vertical_pass(between.data(), width, image.height, height, out);
  }
}

Image resize_bicubic(const Image& image, int64_t width, int64_t height) {
  Image result;
  result.width = width;
  result.height = height;
  BLIPFT_CHECK(width > 0 && height > 0, "resize to ", width, " x ", height);
  result.rgb.resize(static_cast<size_t>(width * height * 3));
  resize_bicubic_into(image, width, height, result.rgb.data());
  return result;
}

}  // namespace blipft
