// The metadata of an ImageFolder: CSV where the input begins with "c" (which is left out), else JSON lines.
#include <algorithm>

#include "blipft/data.h"
#include "fuzz/fuzz_target.h"

BLIPFT_FUZZ_TARGET(metadata) {
  using namespace blipft;
  static const testing::FuzzFolder folder;
  static const std::string pictures[] = {folder.write("a.jpg", "a"), folder.write("sub/b.png", "b")};
  const bool csv = input.starts_with('c');
  folder.remove(csv ? "metadata.jsonl" : "metadata.csv");
  folder.write(csv ? "metadata.csv" : "metadata.jsonl", csv ? input.substr(1) : input);
  testing::refuses_or_takes([&] {
    const auto dataset = open_dataset(folder.path(), "imagefolder");
    for (int64_t i = 0; i < std::min<int64_t>(dataset->size(), 100); ++i)
      if (dataset->read(i).picture->size() != 1) std::abort();  // some other file than the two
  });
}
