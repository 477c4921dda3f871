// Paths: the one place that gives a user's path another spelling.
#pragma once

#include <filesystem>
#include <string>

namespace blipft::io {

/// Returns an absolute path of the same file, without "." and "..", and without a slash at its end. A ".." leads to the
/// parent of the directory that the part before it really is, behind all symbolic links, as it does for the system; other
/// links stay. Components that do not exist yet are kept. An empty path stays empty.
std::string absolute_path(const std::string& path);

/// Returns true if `path` lies in `folder` or is it. Both must be absolute and without "..".
bool lies_within(const std::filesystem::path& path, const std::filesystem::path& folder);

}  // namespace blipft::io
