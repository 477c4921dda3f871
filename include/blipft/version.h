// Version: which source this program was built from.
#pragma once

#include <string>

namespace blipft {

/// The git commit, 12 hexadecimal digits, or "unknown".
const char* version_commit();
/// What the linker made of all that this program was built from, in hexadecimal digits: programs with the same one are
/// the same bytes. "unknown" where the linker left none.
std::string version_build();

}  // namespace blipft
