// A user's path in another spelling: the same file.
#include <doctest/doctest.h>

#include <filesystem>

#include "io/paths.h"
#include "support/temporary_directory.h"

using namespace blipft;
namespace fs = std::filesystem;

TEST_SUITE("io") {
  TEST_CASE("an absolute path goes up behind links, and keeps other links") {
    const testing::TemporaryDirectory directory;
    const std::string top = fs::canonical(directory.path).string();
    fs::create_directories(top + "/real/deep");
    fs::create_directory_symlink(top + "/real/deep", top + "/link");
    CHECK(io::absolute_path(top + "/link/../x") == top + "/real/x");
    CHECK(io::absolute_path(top + "/link/./x/") == top + "/link/x");
    CHECK(io::absolute_path(top + "/link/..") == top + "/real");
    CHECK(io::absolute_path(top + "/link/../../link/a") == top + "/link/a");
    CHECK(io::absolute_path(top + "/absent/../shard-*.tar") == top + "/shard-*.tar");
    CHECK(io::absolute_path("/..") == "/");
    CHECK(io::absolute_path("a//b") == (fs::current_path() / "a/b").string());
    CHECK(io::absolute_path("").empty());
  }

  TEST_CASE("a path lies within a folder by whole components") {
    CHECK(io::lies_within("/a/b/c", "/a/b"));
    CHECK(io::lies_within("/a/b", "/a/b"));
    CHECK(!io::lies_within("/a/bc", "/a/b"));
    CHECK(!io::lies_within("/a", "/a/b"));
  }
}
