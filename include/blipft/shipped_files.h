// Files that come with the program: recipes, shapes of models, measured matrix products.
#pragma once

#include <filesystem>
#include <string>

namespace blipft {

/// Returns the path of a file or folder that came with the program: "inputs/ddp.yaml", "models/phi-4",
/// "gemm_algorithms.txt". An installed bin/blipft has them in ../share/blipft; one that was built in the source tree has
/// them there, in its root or in share/. Returns an empty path if there is none.
std::filesystem::path shipped_file(const std::string& name);

}  // namespace blipft
