// Formats of pictures by their names and first bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace blipft {

/// Returns true if the suffix of a file's name is one of JPEG, PNG or WebP.
bool has_supported_suffix(const std::string& name);
/// Returns the format, such as "GIF", if the suffix is of pictures that cannot be decoded; else an empty text.
std::string unsupported_suffix(const std::string& name);

/// Returns the format of a picture that cannot be decoded, by its first bytes or, if they say nothing, by its suffix. Empty:
/// it is a JPEG, a PNG or a WebP, or unknown.
std::string unsupported_format(const std::string& name, std::string_view first_bytes);

/// Throws UserError with the number and the first names of the unsupported pictures among `count`. `first_bytes(i)` reads
/// the beginning of picture i, empty if it cannot be read. It is called for pictures without a supported suffix and for some
/// others; for all if one of these is unsupported. `place` (a file or folder) is for the message.
void refuse_unsupported_pictures(const std::string& place, int64_t count, const std::function<std::string(int64_t)>& name,
                                 const std::function<std::string(int64_t)>& first_bytes);
constexpr int64_t format_bytes = 16;         // enough for every format

}  // namespace blipft
