// One comparison of the backends, its title, and its run.
#pragma once

#include <functional>
#include <vector>

#include "ops/op_context.h"

namespace blipft::test {

/// One comparison: runs an op (or several) on a context's tensors.
struct OpCase {
  std::string name;
  DType dtype;                  ///< compute dtype, which sets the bound
  bool exact = false;           ///< moves or rounds values only: equal bits
  std::function<void(OpContext&)> run;
  double cancelled = 0;         ///< bf16: the bound of "drelative" where it is a sum that cancels; 0: it does not
};

using Cases = std::vector<OpCase>;

/// Runs the case on a backend. `bytes`: the memory of its tensors.
inline std::vector<Result> run_case(const OpCase& op_case, Backend& backend, int64_t* bytes = nullptr) {
  OpContext context(backend);
  op_case.run(context);
  if (bytes) *bytes = context.size();
  return context.results();
}

template <class... Parts>
std::string title(DType t, const Parts&... parts) {
  return concat(dtype_name(t), " ", parts...);
}

}  // namespace blipft::test
