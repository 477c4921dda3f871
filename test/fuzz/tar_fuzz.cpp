// A shard of a WebDataset.
#include <algorithm>

#include "blipft/datasets.h"
#include "fuzz/fuzz_target.h"

BLIPFT_FUZZ_TARGET(tar) {
  using namespace blipft;
  static const testing::FuzzFolder folder;
  const std::string file = folder.write("s.tar", input);
  testing::refuses_or_takes([&] {
    const auto dataset = open_dataset(file, DatasetFormat::webdataset);
    for (int64_t i = 0; i < std::min<int64_t>(dataset->size(), 100); ++i)
      testing::refuses_or_takes([&] { (void)dataset->read(i); });
  });
}
