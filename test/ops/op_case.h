// One comparison of the backends, and its title.
#pragma once

#include <functional>

#include "ops/op_context.h"

namespace blipft::test {

/// One comparison: runs an op (or several) on a context's tensors.
struct OpCase {
  std::string name;
  DType dtype;                  ///< compute dtype, which sets the bound
  bool exact = false;           ///< moves or rounds values only: equal bits
  std::function<void(OpContext&)> run;
};

using Cases = std::vector<OpCase>;

template <class... Parts>
std::string title(DType t, const Parts&... parts) {
  return concat(dtype_name(t), " ", parts...);
}

}  // namespace blipft::test
