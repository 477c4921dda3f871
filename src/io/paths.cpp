// Paths; see paths.h.
#include "io/paths.h"

#include <algorithm>

namespace blipft::io {

namespace fs = std::filesystem;

std::string absolute_path(const std::string& path) {
  if (path.empty()) return path;
  std::error_code error;
  const fs::path whole = fs::absolute(path, error);
  if (error) return path;                    // the working directory no longer exists
  fs::path out;
  for (const fs::path& part : whole) {
    if (part.empty() || part == ".") continue;
    if (part == "..") {
      const fs::path behind_links = fs::weakly_canonical(out, error);
      out = (error ? out : behind_links).parent_path();
    } else {
      out /= part;
    }
  }
  return out.string();
}

bool lies_within(const fs::path& path, const fs::path& folder) {
  const auto [at, end] = std::mismatch(path.begin(), path.end(), folder.begin(), folder.end());
  return end == folder.end();
}

}  // namespace blipft::io
