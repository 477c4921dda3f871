// Samples that were left out; see bad_samples.h.
#include "train/bad_samples.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

namespace blipft {

namespace {
constexpr size_t kListed = 5;              // samples in the summary of all ranks
constexpr size_t kTextBytes = 1024;        // bytes of a rank's list
}  // namespace

void BadSamples::count(const HostBatch& batch) {
  count_ += static_cast<int64_t>(batch.bad_samples.size());
  counted_.insert(batch.bad_samples.begin(), batch.bad_samples.end());
}

void BadSamples::warn(const HostBatch& batch, const std::string& when) {
  for (const std::string& bad : batch.bad_samples) {
    if (!warned_.insert(bad).second) continue;
    std::fprintf(stderr, "warning: rank %lld on %s: %s: %s; it goes on without this sample (data.on_bad_sample: skip)\n",
                 static_cast<long long>(world_.rank()), world_.host().c_str(), when.c_str(), bad.c_str());
  }
}

std::string BadSamples::summary(int64_t samples) const {
  const auto count = static_cast<int64_t>(world_.sum(static_cast<double>(count_)));
  if (count == 0) return {};
  std::string mine;
  size_t listed = 0;
  for (const std::string& bad : counted_)
    if (listed++ < kListed) mine += bad + "\n";
  mine.resize(kTextBytes);
  std::vector<char> all(world_.rank() == 0 ? kTextBytes * static_cast<size_t>(world_.size()) : 0);
  world_.gather(mine.data(), static_cast<int64_t>(kTextBytes), all.data());
  // Several ranks may report the same sample, in different epochs.
  std::set<std::string> texts;
  for (size_t r = 0; r * kTextBytes < all.size(); ++r) {
    const std::string own(&all[r * kTextBytes], strnlen(&all[r * kTextBytes], kTextBytes));
    for (size_t begin = 0, end; (end = own.find('\n', begin)) != std::string::npos; begin = end + 1)
      texts.insert(own.substr(begin, end - begin));
  }
  std::string text = concat(count, " of ", samples, " samples were left out (data.on_bad_sample: skip):");
  listed = 0;
  for (const std::string& bad : texts)
    if (listed++ < kListed) text += "\n    " + bad;
  if (texts.size() > kListed) text += "\n    ...";
  world_.run_agreeing_on_errors([&] {
    BLIPFT_USER_CHECK(count < samples, location_of(config_, "data.path"), ": data.path: ", config_.data.path,
                      ": no sample could be read: ", text);
  });
  return text;
}

}  // namespace blipft
