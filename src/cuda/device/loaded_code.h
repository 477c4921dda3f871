// Detection of the code of this program that the current GPU has loaded.
#pragma once

#include "cuda/device/architecture.h"

namespace blipft {

/// Returns the architectures that this program was built for.
const std::vector<Architecture>& built_architectures();

/// Returns the code of this program that the current GPU runs, as reported by a kernel, for which it waits. Throws
/// UserError if the driver cannot use the code.
LoadedCode loaded_code();

}  // namespace blipft
