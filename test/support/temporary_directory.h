// A folder for the files of one test.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace blipft::testing {

/// Made empty, and removed with all that is in it when this ends.
class TemporaryDirectory {
 public:
  const std::filesystem::path path = make();

  TemporaryDirectory() = default;
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string operator/(const std::string& name) const { return (path / name).string(); }
  /// The path of a new file with this content; folders on the way to it are made.
  std::string write(const std::string& name, const std::string& content) const {
    const std::filesystem::path file = path / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
    return file.string();
  }

 private:
  static std::filesystem::path make() {
    std::string name = (std::filesystem::temp_directory_path() / "blipft_test_XXXXXX").string();  // as mkdtemp wants it
    REQUIRE(mkdtemp(name.data()));
    return name;
  }
};

}  // namespace blipft::testing
