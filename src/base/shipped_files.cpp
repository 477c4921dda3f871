// Shipped files; see shipped_files.h.
#include "blipft/shipped_files.h"

namespace blipft {

namespace fs = std::filesystem;

fs::path shipped_file(const std::string& name) {
  std::error_code error;
  fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  // PREFIX is one folder above PREFIX/bin, the source tree two above build/cpu.
  for (int i = 0; !error && i < 3; ++i, folder = folder.parent_path())
    for (const char* inside : {"share/blipft", "share", ""})
      if (const fs::path file = folder / inside / name; fs::exists(file, error)) return file;
  return {};
}

}  // namespace blipft
