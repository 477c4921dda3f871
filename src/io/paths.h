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

/// Returns true if `file`, relative to `root`, is an absolute path or leads out of `root` by "..".
bool leads_out(const std::filesystem::path& file, const std::filesystem::path& root);

/// Returns true if the file at `path`, with all links resolved, lies in `root`, a path without links.
bool is_inside(const std::filesystem::path& path, const std::filesystem::path& root);

}  // namespace blipft::io
