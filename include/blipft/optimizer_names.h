// The names of the table of optimizers, which train.optim takes.
#pragma once

#include <string>
#include <vector>

namespace blipft {

std::vector<std::string> optimizer_names();

}  // namespace blipft
