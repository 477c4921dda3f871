// Version: which source this program was built from.
#pragma once

namespace blipft {

/// The git commit, 12 hexadecimal digits, or "unknown".
const char* version_commit();

}  // namespace blipft
