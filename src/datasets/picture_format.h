// Picture formats, detected by file names and first bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace blipft {

/// Returns true if the suffix of a file name is that of a JPEG, PNG or WebP.
bool has_supported_suffix(const std::string& name);
/// Returns the format, such as "GIF", if the suffix belongs to pictures that cannot be decoded; else "".
std::string unsupported_suffix(const std::string& name);

/// Returns the format of a picture that cannot be decoded, from its first bytes or, if these are not known, from its
/// suffix. Returns "" for a JPEG, PNG or WebP, and for an unknown format.
std::string unsupported_format(const std::string& name, std::string_view first_bytes);

/// Throws UserError with the number and the first names of the unsupported pictures among `count`. `first_bytes(i)`
/// reads the beginning of picture i, or returns "" if it cannot be read. It is called for pictures without a supported
/// suffix and for some others; if one of these is unsupported, it is called for all. `location` (a file or folder) is used
/// in the message.
void refuse_unsupported_pictures(const std::string& location, int64_t count, const std::function<std::string(int64_t)>& name,
                                 const std::function<std::string(int64_t)>& first_bytes);
constexpr int64_t format_bytes = 16;         // sufficient to recognize every format

}  // namespace blipft
