// The names of all optimizers: the values of train.optim.
#pragma once

#include <string>
#include <vector>

namespace blipft {

std::vector<std::string> optimizer_names();

}  // namespace blipft
