// Block-wise quantization.
#include "cpu/quantize.h"

#include <algorithm>
#include <cmath>

#include "cpu/cpu_ops.h"
#include "ops/code_book.h"
#include "ops/ops_check.h"

namespace blipft::cpu {

namespace {

float scale_of(const float* values, int64_t count) {
  uint32_t maximum = 0;
  for (int64_t i = 0; i < count; ++i) maximum = std::max(maximum, bits_from_float(values[i]) & 0x7fffffffu);
  return block_scale(maximum);
}

template <int kCount>
uint8_t nearest_code(const CodeTable<kCount>& table, float y) {
  const float* const end = table.midpoints + kCount - 1;
  return static_cast<uint8_t>(std::lower_bound(table.midpoints, end, y) - table.midpoints);
}

uint8_t code_of(CodeBook book, float y) {
  switch (book) {
    case CodeBook::nf4: return nearest_code(kNf4, y);
    case CodeBook::dynamic8: return nearest_code(kDynamic8, y);
    case CodeBook::dynamic8_unsigned: return nearest_code(kDynamic8Unsigned, y);
    case CodeBook::int8: break;
  }
  return std::isnan(y) ? 0 : static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(y)));
}

float value_of(CodeBook book, uint8_t code) {
  switch (book) {
    case CodeBook::nf4: return kNf4.values[code];
    case CodeBook::dynamic8: return kDynamic8.values[code];
    case CodeBook::dynamic8_unsigned: return kDynamic8Unsigned.values[code];
    case CodeBook::int8: break;
  }
  return static_cast<float>(static_cast<int8_t>(code));
}

constexpr float kInt8Top = 127;

// Returns the blocks that share outer scale `group`; their f32 scales are in the caller's `scales` [kScaleBlock].
Quantized inner_blocks(const Quantized& q, int64_t group, float* scales) {
  const int64_t bytes = kScaleBlock * code_block(q.book) * code_bits(q.book) / 8;
  return {q.book, q.quantized.part(group * bytes, {bytes}), {scales, DType::f32, {kScaleBlock}}, {}};
}

// Returns the quantized scales of group `group` as one block.
Quantized scale_values(const Quantized& q, int64_t group) {
  return {CodeBook::dynamic8_unsigned, q.scales.part(group * kScaleBlock, {kScaleBlock}), q.outer.part(group, {1}), {}};
}

// Calls f(inner blocks, block of the group, first element, elements) for all blocks, groups in parallel; elements is 0
// for the blocks after the last number. Calls begin(group, scales) before and end(group, scales) after each group.
template <class Begin, class F, class End>
void for_groups(const Quantized& q, int64_t n, Begin begin, F f, End end) {
  const int64_t size = code_block(q.book);
  for_each(q.outer.numel(), [&](int64_t group) {
    float scales[kScaleBlock];
    const Quantized inner = inner_blocks(q, group, scales);
    begin(group, scales);
    for (int64_t b = 0; b < kScaleBlock; ++b) {
      const int64_t first = (group * kScaleBlock + b) * size;
      f(inner, b, first, std::clamp<int64_t>(n - first, 0, size));
    }
    end(group, scales);
  });
}

// Calls f(block, first element, elements) for the blocks of n numbers, in parallel.
template <class F>
void for_blocks(CodeBook book, int64_t n, F f) {
  const int64_t size = code_block(book);
  for_each((n + size - 1) / size, [&](int64_t b) { f(b, b * size, std::min(size, n - b * size)); });
}

}  // namespace

void encode_block(const float* values, int64_t count, const Quantized& to, int64_t block) {
  const int64_t size = code_block(to.book);
  const float scale = scale_of(values, count);
  const float factor = code_factor(scale, to.book == CodeBook::int8 ? kInt8Top : 1.0f);
  to.scales.as<float>()[block] = scale;
  uint8_t quantized[kMaxEntries];
  for (int64_t i = 0; i < size; ++i) quantized[i] = code_of(to.book, i < count ? values[i] * factor : 0.0f);
  uint8_t* const out = to.quantized.as<uint8_t>() + block * size * code_bits(to.book) / 8;
  if (code_bits(to.book) == 8) std::copy_n(quantized, size, out);
  else
    for (int64_t i = 0; i < size; i += 2) out[i / 2] = static_cast<uint8_t>(quantized[i] << 4 | quantized[i + 1]);
}

void decode_block(const Quantized& from, int64_t block, float* values, int64_t count) {
  const int64_t size = code_block(from.book), bits = code_bits(from.book);
  const uint8_t* const in = from.quantized.as<const uint8_t>() + block * size * bits / 8;
  const float stored = from.scales.as<const float>()[block];
  const float scale = from.book == CodeBook::int8 ? stored / kInt8Top : stored;
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t code = bits == 8 ? in[i] : i % 2 == 0 ? in[i / 2] >> 4 : in[i / 2] & 15;
    values[i] = value_of(from.book, code) * scale;
  }
}

void CpuOps::quantize(const Tensor& values, const Quantized& to, Stream) {
  check_quantize(values, to);
  if (to.outer)
    return for_groups(
        to, values.numel(), [](int64_t, float*) {},
        [&](const Quantized& inner, int64_t block, int64_t first, int64_t count) {
          float numbers[kMaxEntries];
          if (count > 0) load(values, first, count, numbers);
          encode_block(numbers, count, inner, block);
        },
        [&](int64_t group, const float* scales) { encode_block(scales, kScaleBlock, scale_values(to, group), 0); });
  for_blocks(to.book, values.numel(), [&](int64_t block, int64_t first, int64_t count) {
    float numbers[kMaxEntries];
    load(values, first, count, numbers);
    encode_block(numbers, count, to, block);
  });
}

void CpuOps::dequantize(const Quantized& from, const Tensor& values, Stream) {
  check_dequantize(from, values);
  if (from.outer)
    return for_groups(
        from, values.numel(),
        [&](int64_t group, float* scales) { decode_block(scale_values(from, group), 0, scales, kScaleBlock); },
        [&](const Quantized& inner, int64_t block, int64_t first, int64_t count) {
          float numbers[kMaxEntries];
          if (count == 0) return;
          decode_block(inner, block, numbers, count);
          store(numbers, values, first, count);
        },
        [](int64_t, const float*) {});
  for_blocks(from.book, values.numel(), [&](int64_t block, int64_t first, int64_t count) {
    float numbers[kMaxEntries];
    decode_block(from, block, numbers, count);
    store(numbers, values, first, count);
  });
}

}  // namespace blipft::cpu
