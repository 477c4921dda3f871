// Work on many samples by several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace blipft {

/// Calls body(i) for each i below `count` from several threads, in about this order. Throws what the first i threw.
inline void for_each_in_threads(int64_t count, int64_t threads, const std::function<void(int64_t)>& body) {
  constexpr int64_t kSamplesAtATime = 64;    // number of samples that a thread processes at a time
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  int64_t failed = count;
  std::exception_ptr error;
  const auto work = [&] {
    for (int64_t first = next.fetch_add(kSamplesAtATime); first < count; first = next.fetch_add(kSamplesAtATime))
      for (int64_t i = first; i < std::min(first + kSamplesAtATime, count); ++i) {
        try {
          body(i);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (i < failed) failed = i, error = std::current_exception();
          next = count;                      // smaller i are already being processed by some thread, which finishes
                                             // them
          return;
        }
      }
  };
  {
    std::vector<std::jthread> others;
    for (int64_t t = 1; t < std::min(threads, count / kSamplesAtATime + 1); ++t) others.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace blipft
