// Paths: the only code that rewrites the spelling of a user's path.
#pragma once

#include <filesystem>
#include <string>

namespace blipft::io {

/// Returns an absolute path of the same file, without "." and "..", and without a slash at its end. As for the
/// operating system, ".." means the parent of the real directory, after all symbolic links are resolved. Other links
/// stay. Components that do not exist yet are kept. An empty path stays empty.
std::string absolute_path(const std::string& path);

/// Returns true if `path` is `folder` or lies inside it. Both must be absolute and without "..".
bool lies_within(const std::filesystem::path& path, const std::filesystem::path& folder);

}  // namespace blipft::io
