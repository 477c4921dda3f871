// resize_picture: the separable antialiased resampling of PIL's Image.resize and of torchvision, bit-identical.
//
// Each output pixel is a weighted sum of input pixels in a window of 2 * support; support grows with the scale when the
// picture shrinks. Weights are computed in double, normalised, and rounded to fixed point: PIL to 22 bits, torchvision
// to as many bits as fit into 16-bit weights. The first pass rounds to 8 bits before the second pass.
#include "pictures/image_resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "blipft/error.h"
#include "pictures/image_pixels.h"

namespace blipft {
namespace {

constexpr int max_precision = 32 - 8 - 2;  // 8 for the pixel, 2 for intermediate sums of weights that exceed 1

/// The weights of all output positions along one axis.
struct Weights {
  struct Window {
    int64_t first = 0, count = 0;
  };
  int precision = max_precision;  ///< bits behind the binary point of `values`
  int64_t stride = 0;             ///< allocated weights per output position
  std::vector<Window> windows;    // [out]
  std::vector<int32_t> values;    // [out, stride]
};

/// Keys' cubic convolution kernel with a = -0.5.
BLIPFT_NO_FMA double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

double triangle(double x) { return std::max(1.0 - std::fabs(x), 0.0); }

/// Returns the largest precision at which `weight` rounds to a 16-bit integer, as torchvision chooses it.
int int16_precision(double weight) {
  int bits = max_precision;
  while (bits > 0 && 0.5 + weight * (1 << bits) >= 1 << 15) --bits;
  return bits;
}

BLIPFT_NO_FMA Weights make_weights(int64_t in, int64_t out, ResizeMethod method) {
  const bool cubic = method.filter == ResizeFilter::bicubic;
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double filter_scale = scale < 1.0 ? 1.0 : scale;
  const double support = (cubic ? 2.0 : 1.0) * filter_scale;
  const double inverse = 1.0 / filter_scale;
  Weights weights;
  weights.stride = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  weights.windows.resize(static_cast<size_t>(out));
  std::vector<double> exact(static_cast<size_t>(out * weights.stride));
  double largest = 0;
  for (int64_t i = 0; i < out; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0);
    const int64_t last = std::min<int64_t>(static_cast<int64_t>(center + support + 0.5), in);
    double* const row = exact.data() + i * weights.stride;
    double sum = 0;
    for (int64_t k = 0; k < last - first; ++k) {
      const double place = (static_cast<double>(k + first) - center + 0.5) * inverse;
      row[k] = cubic ? bicubic(place) : triangle(place);
      sum += row[k];
    }
    for (int64_t k = 0; k < last - first; ++k) {
      if (sum != 0.0) row[k] /= sum;
      largest = std::max(largest, row[k]);
    }
    weights.windows[i] = {first, last - first};
  }
  if (method.library == PixelLibrary::torchvision) weights.precision = int16_precision(largest);
  weights.values.resize(exact.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    const double fixed = exact[i] * (1 << weights.precision);
    weights.values[i] = static_cast<int32_t>(exact[i] < 0 ? -0.5 + fixed : 0.5 + fixed);
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

uint8_t clip(int32_t sum, int precision) {
  sum >>= precision;
  return static_cast<uint8_t>(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

/// Processes two rows at once. `in` are u8 [in_width, 3], each followed by one more readable byte; `out` are u8
/// [out_width, 3].
void horizontal_rows(const uint8_t* in0, const uint8_t* in1, const Weights& weights, uint8_t* out0, uint8_t* out1) {
  const int precision = weights.precision;
  const int32_t half = 1 << (precision - 1);
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
    out0[0] = clip(sum[0], precision), out0[1] = clip(sum[1], precision), out0[2] = clip(sum[2], precision);
    out1[0] = clip(sum[4], precision), out1[1] = clip(sum[5], precision), out1[2] = clip(sum[6], precision);
  }
}

/// Computes output row `y` from input rows of `bytes` values each; `in` points to the first row of the picture.
void vertical_row(const uint8_t* in, int64_t bytes, const Weights& weights, int64_t y, uint8_t* out) {
  const auto [first, count] = weights.windows[y];
  const int32_t* const weight = weights.values.data() + y * weights.stride;
  const int precision = weights.precision;
  const int32_t half = 1 << (precision - 1);
  in += first * bytes;
  int64_t x = 0;
  for (; x + 8 <= bytes; x += 8) {
    Int8 sum = {half, half, half, half, half, half, half, half};
    for (int64_t k = 0; k < count; ++k) {
      sum += widen(load<uint64_t>(in + k * bytes + x)) * weight[k];
    }
    for (int64_t i = 0; i < 8; ++i) out[x + i] = clip(sum[i], precision);
  }
  for (; x < bytes; ++x) {
    int32_t sum = half;
    for (int64_t k = 0; k < count; ++k) sum += in[k * bytes + x] * weight[k];
    out[x] = clip(sum, precision);
  }
}

/// u8 [height, in_width, 3] -> u8 [height, out_width, 3].
void horizontal_pass(const uint8_t* in, int64_t height, int64_t in_width, int64_t out_width, ResizeMethod method,
                     uint8_t* out) {
  const Weights weights = make_weights(in_width, out_width, method);
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
void vertical_pass(const uint8_t* in, int64_t width, int64_t in_height, int64_t out_height, ResizeMethod method,
                   uint8_t* out) {
  const Weights weights = make_weights(in_height, out_height, method);
  for (int64_t y = 0; y < out_height; ++y) vertical_row(in, width * 3, weights, y, out + y * width * 3);
}

/// Returns true if Pillow 13 runs the vertical pass first: if the height loses more than twice as many pixels as the
/// width. Older versions and torchvision never do. The order affects the last bits, because the first pass rounds to 8
/// bits.
bool vertical_first(int64_t in_width, int64_t in_height, int64_t out_width, int64_t out_height) {
  return in_height > out_height && 2 * (in_width - out_width) < in_height - out_height;
}

}  // namespace

void resize_picture_into(const Image& image, int64_t width, int64_t height, ResizeMethod method, uint8_t* out) {
  BLIPFT_CHECK(width > 0 && height > 0 && image.width > 0 && image.height > 0, "resize of ", image.width, " x ",
               image.height, " to ", width, " x ", height);
  BLIPFT_CHECK(static_cast<int64_t>(image.rgb.size()) == image.width * image.height * 3, image.rgb.size(),
               " bytes for ", image.width, " x ", image.height);
  const uint8_t* in = image.rgb.data();
  // Both libraries skip the pass along an axis whose size does not change.
  if (width == image.width && height == image.height) {
    std::memcpy(out, in, image.rgb.size());
  } else if (height == image.height) {
    horizontal_pass(in, height, image.width, width, method, out);
  } else if (width == image.width) {
    vertical_pass(in, width, image.height, height, method, out);
  } else if (method.library == PixelLibrary::pillow && vertical_first(image.width, image.height, width, height)) {
    std::vector<uint8_t> between(static_cast<size_t>(height * image.width * 3));
    vertical_pass(in, image.width, image.height, height, method, between.data());
    horizontal_pass(between.data(), height, image.width, width, method, out);
  } else {
    std::vector<uint8_t> between(static_cast<size_t>(image.height * width * 3));
    horizontal_pass(in, image.height, image.width, width, method, between.data());
    vertical_pass(between.data(), width, image.height, height, method, out);
  }
}

Image resize_picture(const Image& image, int64_t width, int64_t height, ResizeMethod method) {
  Image result;
  result.width = width;
  result.height = height;
  BLIPFT_CHECK(width > 0 && height > 0, "resize to ", width, " x ", height);
  result.rgb.resize(static_cast<size_t>(width * height * 3));
  resize_picture_into(image, width, height, method, result.rgb.data());
  return result;
}

}  // namespace blipft
