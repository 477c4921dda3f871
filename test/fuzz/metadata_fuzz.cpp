// The metadata of an ImageFolder: CSV where the input begins with "c", COCO's captions where it begins with "o", the text
// beside the pictures where it begins with "t" (the letter is left out), else JSON lines.
#include <algorithm>
#include <utility>

#include "blipft/datasets.h"
#include "fuzz/fuzz_target.h"

BLIPFT_FUZZ_TARGET(metadata) {
  using namespace blipft;
  static const testing::FuzzFolder folder;
  static const std::string pictures[] = {folder.write("a.jpg", "a"), folder.write("sub/b.png", "b")};
  std::string file = "metadata.jsonl";
  for (const auto& [letter, name] : {std::pair{'c', "metadata.csv"}, std::pair{'o', "captions.json"},
                                     std::pair{'t', "a.txt"}})
    if (input.starts_with(letter)) file = name;
  for (const char* other : {"metadata.jsonl", "metadata.csv", "captions.json", "a.txt"}) folder.remove(other);
  const std::string written = folder.write(file, file == "metadata.jsonl" ? input : input.substr(1));
  testing::refuses_or_takes([&] {
    const auto dataset = open_dataset(file == "captions.json" ? written : folder.path(), DatasetFormat::imagefolder);
    for (int64_t i = 0; i < std::min<int64_t>(dataset->size(), 100); ++i)
      if (dataset->read(i).picture->size() != 1) std::abort();  // some other file than the two
  });
}
