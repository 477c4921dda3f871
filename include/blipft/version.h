// Version: the source that this program was built from.
#pragma once

#include <string>

namespace blipft {

/// Returns the git commit as 12 hexadecimal digits, or "unknown".
const char* version_commit();
/// Returns the build id that the linker computed from the program's contents, in hexadecimal digits: programs with
/// equal build ids have identical bytes. Returns "unknown" if the linker stored none.
std::string version_build();

}  // namespace blipft
