// Reading gzip files.
#pragma once

#include <cstdint>
#include <string>

namespace blipft::io {

/// Returns true if the name of a file ends with .gz.
bool is_gzip_name(const std::string& path);

/// Returns the uncompressed content of a gzip file, which may have several members. Throws UserError naming the file if it
/// is damaged or truncated, or if the content has more than `max_bytes`.
std::string read_gzip(const std::string& path, int64_t max_bytes);
/// Returns the first `bytes` bytes of the content, or all if there are fewer. Throws UserError naming the file if they cannot
/// be read.
std::string read_gzip_start(const std::string& path, int64_t bytes);

}  // namespace blipft::io
