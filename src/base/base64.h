// Base64 encoding (RFC 4648).
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace blipft {

std::string base64_of(std::span<const uint8_t> bytes);

}  // namespace blipft
