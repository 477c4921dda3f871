// A cache that keeps prepared samples from one epoch to the next.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "loading/sample_text.h"

namespace blipft {

/// A sample in the form that a step needs.
struct PreparedSample {
  std::vector<uint8_t> pixels;   ///< [P, P, 3], empty if the model reads no pictures
  TokenizedAnswers text;         ///< truncated, not padded
};

/// Least-recently-used cache of prepared samples, keyed by dataset index and limited in bytes. Thread-safe.
class SampleCache {
 public:
  explicit SampleCache(int64_t limit_bytes) : limit_(limit_bytes) {}

  /// Returns the sample, or null if it is not cached.
  std::shared_ptr<const PreparedSample> find(int64_t sample) {
    std::lock_guard lock(mutex_);
    const auto found = items_.find(sample);
    if (found == items_.end()) return nullptr;
    order_.splice(order_.begin(), order_, found->second);
    return found->second->prepared;
  }

  void insert(int64_t sample, std::shared_ptr<const PreparedSample> prepared) {
    const int64_t bytes = static_cast<int64_t>(prepared->pixels.size()) + prepared->text.tokens() * kTokenBytes;
    std::lock_guard lock(mutex_);
    if (bytes > limit_ || items_.contains(sample)) return;
    for (; bytes_ + bytes > limit_; order_.pop_back()) {
      bytes_ -= order_.back().bytes;
      items_.erase(order_.back().sample);
    }
    order_.push_front({sample, bytes, std::move(prepared)});
    items_[sample] = order_.begin();
    bytes_ += bytes;
  }

  int64_t bytes() const {
    std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  static constexpr int64_t kTokenBytes = sizeof(int32_t) + sizeof(uint8_t);
  struct Item {
    int64_t sample, bytes;
    std::shared_ptr<const PreparedSample> prepared;
  };
  mutable std::mutex mutex_;
  const int64_t limit_;
  int64_t bytes_ = 0;
  std::list<Item> order_;  // most recently used first
  std::unordered_map<int64_t, std::list<Item>::iterator> items_;
};

}  // namespace blipft
