// Texts that are generated in slots, in ordinary memory, for tests of decoding on the CPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "blipft/decode_ops.h"

namespace blipft::test {

template <class T>
Tensor tensor_of(std::vector<T>& numbers, const Shape& shape) {
  constexpr DType dtype = std::is_same_v<T, float> ? DType::f32 : std::is_same_v<T, int64_t> ? DType::i64 : DType::i32;
  return {numbers.data(), dtype, shape};
}

inline uint64_t splitmix(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// The logits of tools/blipft_golden/generation.py for the id that follows `length` ids with these two at the end.
struct TableModel {
  uint64_t seed = 0;
  int64_t vocabulary = 0;
  std::vector<int32_t> ends;
  double bonus = 0;

  void logits(int64_t before_last, int64_t last, int64_t length, float* row) const {
    const uint64_t key = splitmix(splitmix(splitmix(seed + static_cast<uint64_t>(last)) +
                                           static_cast<uint64_t>(before_last)) + static_cast<uint64_t>(length));
    for (int64_t i = 0; i < vocabulary; ++i) {
      const auto number = static_cast<double>(splitmix(key + static_cast<uint64_t>(i)) >> 40);
      const bool end = std::find(ends.begin(), ends.end(), i) != ends.end();
      row[i] = static_cast<float>((number / 8388608 - 1) * 4 + (end ? bonus : 0));
    }
  }
};

/// The decoding state of several slots.
struct DecodeTexts {
  int64_t slots, maximum;
  std::vector<int32_t> ids, lengths, prompt_lengths, limits, done;
  std::vector<int64_t> keys;

  DecodeTexts(int64_t slot_count, int64_t max_ids)
      : slots(slot_count), maximum(max_ids), ids(size(slots * maximum), -7), lengths(size(slots)),
        prompt_lengths(size(slots)), limits(size(slots)), done(size(slots)), keys(size(slots)) {}

  static size_t size(int64_t n) { return static_cast<size_t>(n); }
  void start(int64_t slot, const std::vector<int32_t>& prompt, int64_t limit, int64_t key = 0) {
    std::copy(prompt.begin(), prompt.end(), ids.begin() + slot * maximum);
    lengths[size(slot)] = prompt_lengths[size(slot)] = static_cast<int32_t>(prompt.size());
    limits[size(slot)] = static_cast<int32_t>(limit), keys[size(slot)] = key, done[size(slot)] = kRunning;
  }
  DecodeState state() {
    return {tensor_of(ids, {slots, maximum}), tensor_of(lengths, {slots}), tensor_of(prompt_lengths, {slots}),
            tensor_of(limits, {slots}), tensor_of(keys, {slots}), tensor_of(done, {slots})};
  }
  bool grows(int64_t slot) const { return lengths[size(slot)] > 0 && done[size(slot)] == kRunning; }
  bool any_grows() const {
    for (int64_t s = 0; s < slots; ++s)
      if (grows(s)) return true;
    return false;
  }
  std::vector<int32_t> text(int64_t slot) const {
    return {ids.begin() + slot * maximum, ids.begin() + slot * maximum + lengths[size(slot)]};
  }
  std::vector<int32_t> new_ids(int64_t slot) const {
    return {ids.begin() + slot * maximum + prompt_lengths[size(slot)], ids.begin() + slot * maximum + lengths[size(slot)]};
  }
  /// Writes the logits of the slot's next id; arbitrary numbers for an inactive slot.
  void logits(const TableModel& model, int64_t slot, float* row) const {
    std::fill_n(row, model.vocabulary, -1e30f);
    if (!grows(slot)) return;
    const int64_t length = lengths[size(slot)];
    const int32_t* own = ids.data() + slot * maximum;
    model.logits(length > 1 ? own[length - 2] : 0, own[length - 1], length, row);
  }
};

}  // namespace blipft::test
