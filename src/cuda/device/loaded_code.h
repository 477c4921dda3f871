// Asks the current GPU which of this program's code it has loaded.
#pragma once

#include "cuda/device/architecture.h"

namespace blipft {

/// What this program was built for.
const std::vector<Architecture>& built_architectures();

/// The code of this program that the current GPU runs, as that code itself says. Runs a kernel and waits for it. Throws
/// UserError when the driver cannot use the code.
LoadedCode loaded_code();

}  // namespace blipft
