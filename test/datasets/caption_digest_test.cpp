// Captions beside pictures are part of what ranks and resumed runs compare.
#include <doctest/doctest.h>

#include <filesystem>

#include "blipft/datasets.h"
#include "io/digest.h"
#include "support/temporary_directory.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

/// The digest of equal pictures 0.jpg to 99.jpg with these captions next to them.
std::string contents_of(const TemporaryDirectory& directory, const std::string& caption, int64_t other = -1,
                        const std::string& other_caption = "") {
  for (int64_t i = 0; i < 100; ++i) {
    directory.write(std::to_string(i) + ".jpg", "a picture");
    directory.write(std::to_string(i) + ".txt", i == other ? other_caption : caption);
  }
  io::Digest digest;
  open_dataset(directory.path.string(), DatasetFormat::automatic)->identify_contents([&](std::string_view text, int64_t bytes) {
    digest.add(text), digest.add(bytes);
  });
  return digest.text();
}

}  // namespace

TEST_SUITE("caption digest") {
  TEST_CASE("folders of the same names and lengths with other words in one .txt are other data") {
    const TemporaryDirectory first, second, third;
    const std::string same = contents_of(first, "a red cat");
    CHECK(contents_of(second, "a red cat") == same);
    for (const int64_t other : {int64_t{0}, int64_t{57}, int64_t{99}})
      CHECK(contents_of(third, "a red cat", other, "a red dog") != same);
    CHECK(contents_of(third, "a red cat") == same);
    CHECK(contents_of(third, "a red cat", 3, "a red cat\n") == same);  // a line's end that is not part of it
  }

  TEST_CASE("a .txt that cannot be read is reported as such, and ends nothing") {
    const TemporaryDirectory directory;
    const std::string same = contents_of(directory, "a red cat");
    const auto dataset = open_dataset(directory.path.string(), DatasetFormat::automatic);
    std::filesystem::remove(directory.path / "5.txt");
    io::Digest digest;
    dataset->identify_contents([&](std::string_view text, int64_t bytes) { digest.add(text), digest.add(bytes); });
    CHECK(digest.text() != same);
  }
}
