// Shared code of the fuzz targets. A target is one file, test/fuzz/NAME_fuzz.cpp, and one row in targets.h: a function that
// takes any bytes for the content of a file, and must end with a result or with a UserError of about a line.
//
// Each file is built twice: by clang with libFuzzer (make fuzz), and into the test program, where replay_test.cpp calls
// it with the corpus and with mutations of it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "blipft/error.h"

#ifdef BLIPFT_LIBFUZZER
#define BLIPFT_FUZZ_ENTRY(name)                                             \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    blipft::testing::fuzz_##name({reinterpret_cast<const char*>(data), size}); \
    return 0;                                                               \
  }
#else
#define BLIPFT_FUZZ_ENTRY(name)
#endif

/// Opens the function of a target; its body takes `std::string_view input`.
#define BLIPFT_FUZZ_TARGET(name)                            \
  namespace blipft::testing {                               \
  void fuzz_##name(std::string_view input);                 \
  }                                                         \
  BLIPFT_FUZZ_ENTRY(name)                                   \
  void blipft::testing::fuzz_##name(std::string_view input)

namespace blipft::testing {

/// A folder for the files of a target, in memory where that is possible; removed when the program ends.
class FuzzFolder {
 public:
  FuzzFolder() {
    std::error_code ignored;
    const std::filesystem::path memory = "/dev/shm";
    const bool there = std::filesystem::is_directory(memory, ignored);
    std::string name = ((there ? memory : std::filesystem::temp_directory_path()) / "blipft_fuzz_XXXXXX").string();
    if (!mkdtemp(name.data())) std::abort();
    path_ = name;
  }
  ~FuzzFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  FuzzFolder(const FuzzFolder&) = delete;
  FuzzFolder& operator=(const FuzzFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string write(const std::string& name, std::string_view content) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
    return file.string();
  }
  void remove(const std::string& name) const {
    std::error_code ignored;
    std::filesystem::remove(path_ / name, ignored);
  }

 private:
  std::filesystem::path path_;
};

/// Runs `body`, which may end with a UserError that is no longer than a message should be. Anything else passes through
/// and ends the program.
template <class Body>
void refuses_or_takes(const Body& body) {
  try {
    body();
  } catch (const UserError& error) {
    const std::string_view text = error.what();
    if (!text.empty() && text.size() <= 2000) return;
    std::fprintf(stderr, "a message of %zu bytes: %.3000s\n", text.size(), error.what());
    std::abort();
  }
}

}  // namespace blipft::testing
