// A folder for the files of one test.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace blipft::testing {

/// Creates an empty folder, and removes it with its content in the destructor.
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
  /// Writes a new file with this content and returns its path; creates missing folders.
  std::string write(const std::string& name, const std::string& content) const {
    const std::filesystem::path file = path / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
    return file.string();
  }

 private:
  static std::filesystem::path make() {
    std::string name = (std::filesystem::temp_directory_path() / "blipft_test_XXXXXX").string();  // the template of mkdtemp
    REQUIRE(mkdtemp(name.data()));
    return name;
  }
};

}  // namespace blipft::testing
