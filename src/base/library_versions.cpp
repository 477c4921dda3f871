// Compiler and libraries; see version.h.
#include "blipft/error.h"
#include "blipft/version.h"

namespace blipft {

namespace {

/// The first `parts` parts of a version: "Open MPI 4" of "Open MPI 4.1.4".
std::string first_parts(const std::string& version, int parts) {
  size_t end = 0;
  for (; parts > 0 && end != std::string::npos; --parts) end = version.find('.', end == 0 ? 0 : end + 1);
  return version.substr(0, end);
}

}  // namespace

std::string version_compiler() {
#if defined(__clang__)
  const std::string compiler = __VERSION__;
#else
  const std::string compiler = "g++ " __VERSION__;
#endif
#if defined(__AVX512F__)
  return compiler + ", x86-64-v4";
#elif defined(__AVX2__)
  return compiler + ", x86-64-v3";
#elif defined(__aarch64__)
  return compiler + ", aarch64";
#else
  return compiler;
#endif
}

void check_libraries(const std::vector<LibraryVersion>& libraries) {
  for (const LibraryVersion& library : libraries) {
    if (library.same_parts == 0 || library.found.empty()) continue;
    BLIPFT_USER_CHECK(first_parts(library.built, library.same_parts) == first_parts(library.found, library.same_parts),
                      library.name, ": blipft was built with ", library.built, ", and found ", library.found,
                      " when it started. Load the ", library.name, " that it was built with (modules, LD_LIBRARY_PATH; ",
                      "`ldd` shows which file is taken), or build blipft again");
  }
}

}  // namespace blipft
