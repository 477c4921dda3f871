// The values of pixels, for both backends; see PatchValues.
#pragma once

#include "blipft/patch_ops.h"
#include "blipft/philox.h"

namespace blipft {

/// The normalization of a colour, step by step in f32, without a fused multiply-add.
struct PixelScale {
  float mean, std;
  bool of_bytes;
  BLIPFT_HOST_DEVICE float of(float pixel) const {
    const float value = of_bytes ? pixel : static_cast<float>(static_cast<double>(pixel) * (1.0 / 255));
    return (value - mean) / std;
  }
};
inline PixelScale pixel_scale(const PatchValues& args, int colour) {
  const double factor = args.of_bytes ? 255 : 1;  // a product in f64 that is rounded once is the product in f32
  return {static_cast<float>(static_cast<double>(args.mean[colour]) * factor),
          static_cast<float>(static_cast<double>(args.std[colour]) * factor), args.of_bytes};
}

}  // namespace blipft
