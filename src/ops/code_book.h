// The value tables of block-wise quantization (CodeBook in ops.h) and the encoding of numbers. Both backends use this
// code, in f32 without fused operations, so that their values are equal, except in a block whose scale is NaN: its values
// are undefined.
#pragma once

#include <bit>
#include <cstdint>

#include "blipft/error.h"
#include "blipft/ops.h"
#include "blipft/philox.h"

namespace blipft {

/// Values in ascending order and the midpoints between neighbours: midpoints[i] = (values[i] + values[i + 1]) / 2.
template <int kCount>
struct CodeTable {
  float values[kCount]{};
  float midpoints[kCount - 1]{};

  constexpr void find_midpoints() {
    for (int i = 0; i + 1 < kCount; ++i) midpoints[i] = (values[i] + values[i + 1]) * 0.5f;
  }
};

/// Quantiles of a normal distribution, scaled to [-1, 1] and including 0 (QLoRA, Dettmers et al. 2023, appendix E).
constexpr CodeTable<16> make_nf4_table() {
  CodeTable<16> table{{-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
                       -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,
                       0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f,
                       0.7229568362236023f, 1.0f}};
  table.find_midpoints();
  return table;
}

/// Makes a table of 0, 1 and seven decades (8-bit optimizers, Dettmers et al. 2022, sections 1.3 and 2.2). Decade i =
/// 0..6 divides [0.1, 1] into 2^i parts (2^(i + 1) if unsigned); its values are the midpoints of the parts times 10^(i
/// - 6), with both signs if signed.
constexpr CodeTable<256> make_dynamic_table(bool with_signs) {
  constexpr float kDecades[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  CodeTable<256> table;
  const int zero = with_signs ? 127 : 0;
  int code = zero;
  for (int i = 0; i < 7; ++i) {
    const int parts = with_signs ? 1 << i : 2 << i;
    const float step = (1.0f - 0.1f) / static_cast<float>(parts);
    // Each bound is computed from the nearer end and rounded once to f32, like torch.linspace.
    const auto bound = [&](int j) {
      const double width = static_cast<double>(step);
      const double from_below = static_cast<double>(0.1f) + width * j, from_above = 1.0 - width * (parts - j);
      return static_cast<float>(j < (parts + 1) / 2 ? from_below : from_above);
    };
    for (int j = 0; j < parts; ++j) {
      const float middle = (bound(j) + bound(j + 1)) * 0.5f;
      table.values[++code] = kDecades[i] * middle;
      if (with_signs) table.values[zero - (code - zero)] = -table.values[code];
    }
  }
  table.values[255] = 1.0f;
  table.find_midpoints();
  return table;
}

inline constexpr CodeTable<16> kNf4 = make_nf4_table();
inline constexpr CodeTable<256> kDynamic8 = make_dynamic_table(true), kDynamic8Unsigned = make_dynamic_table(false);

/// Returns a block's scale from the bits of its largest magnitude. The bits of infinity are larger than those of all
/// numbers, and those of a NaN are larger still; both give a NaN scale, which decoding then shows.
BLIPFT_HOST_DEVICE float block_scale(uint32_t magnitude) {
  return std::bit_cast<float>(magnitude < 0x7f800000u ? magnitude : 0x7fc00000u);
}
/// A block with a smaller scale is encoded as zeros because top / scale could overflow.
constexpr float kMinScale = 0x1p-119f;
/// Returns the factor that scales a block's numbers before they are encoded: `top` (1, or 127 for int8) / scale, or 0
/// for a too small or NaN scale.
BLIPFT_HOST_DEVICE float code_factor(float scale, float top) {
  return scale >= kMinScale ? top / scale : 0.0f;
}

/// Counts the midpoints of a dynamic table below a number with one look-up. Numbers in [2^-23, 1] with equal exponent
/// and equal first kBits mantissa bits share a bin. A bin contains at most one midpoint. The top byte of its entry is
/// the number of midpoints below the bin. The low 24 bits are chosen such that adding the remaining mantissa bits of a
/// number carries into the top byte if the number is above the bin's midpoint.
template <int kBits>
struct MidpointIndex {
  static constexpr int kShift = 23 - kBits, kBins = (23 << kBits) + 1;
  static constexpr uint32_t kFirst = uint32_t{127 - 23} << kBits, kMask = (1u << kShift) - 1, kCount = 1u << 24;
  uint32_t entries[kBins]{};

  /// Uses the table's midpoints between non-negative values.
  constexpr explicit MidpointIndex(const CodeTable<256>& table) {
    int next = 0;
    while (table.values[next] < 0) ++next;
    uint32_t below = 0;
    for (int bin = 0; bin < kBins; ++bin) {
      uint32_t own = kMask + 1;
      for (int found = 0; next < 255; ++next, ++found) {
        const uint32_t bits = std::bit_cast<uint32_t>(table.midpoints[next]);
        if ((bits >> kShift) != kFirst + static_cast<uint32_t>(bin)) break;
        if (found > 0) throw Error("two midpoints in one bin");
        own = bits & kMask;
        if (bin == 0 && own == 0) throw Error("the least number is a midpoint");
      }
      entries[bin] = below * kCount + (kCount - 1 - own);
      if (own <= kMask) ++below;
    }
    if (next != 255) throw Error("a midpoint lies in no bin");
  }
};

inline constexpr MidpointIndex<6> kDynamic8Index(kDynamic8);
inline constexpr MidpointIndex<7> kDynamic8UnsignedIndex(kDynamic8Unsigned);

/// Returns the number of midpoints below the number with bits `magnitude`, or at most equal to it if `or_equal` is 1
/// (else 0). A negative number counts 0, a number above 1 counts as 1. `entries` are those of a MidpointIndex<kBits>.
/// There are no branches, so that a GPU thread can have several look-ups in flight.
template <int kBits>
BLIPFT_HOST_DEVICE uint32_t midpoints_below(const uint32_t* entries, int32_t magnitude, uint32_t or_equal) {
  using Index = MidpointIndex<kBits>;
  constexpr auto kMin = static_cast<int32_t>(Index::kFirst << Index::kShift), kOne = std::bit_cast<int32_t>(1.0f);
  const int32_t minimum = magnitude > kMin ? magnitude : kMin;
  const auto bits = static_cast<uint32_t>(minimum < kOne ? minimum : kOne);
  return (entries[(bits >> Index::kShift) - Index::kFirst] + (bits & Index::kMask) + or_equal) / Index::kCount;
}

/// Returns the code of y in [-1, 1], which is the number of midpoints below y.
BLIPFT_HOST_DEVICE uint32_t dynamic8_code(const uint32_t* entries, float y) {
  const auto bits = std::bit_cast<uint32_t>(y), negative = bits >> 31;
  const uint32_t count = midpoints_below<6>(entries, static_cast<int32_t>(bits & 0x7fffffffu), negative);
  return negative ? 127u - (count < 127u ? count : 127u) : 127u + count;
}
BLIPFT_HOST_DEVICE uint32_t dynamic8_unsigned_code(const uint32_t* entries, float y) {
  return midpoints_below<7>(entries, std::bit_cast<int32_t>(y), 0);
}

}  // namespace blipft
