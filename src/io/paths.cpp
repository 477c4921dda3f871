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

bool leads_out(const fs::path& file, const fs::path& root) {
  if (file.is_absolute()) return true;
  const bool steps_up = std::find(file.begin(), file.end(), "..") != file.end();
  return steps_up && !lies_within(fs::weakly_canonical(root / file), root);
}

bool is_inside(const fs::path& path, const fs::path& root) {
  std::error_code error;
  const fs::path found = fs::canonical(path, error);
  return !error && lies_within(found, root);
}

}  // namespace blipft::io
