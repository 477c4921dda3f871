// The run file: what is accepted must be printed so that it is accepted again, as the same.
#include "blipft/config.h"
#include "fuzz/fuzz_target.h"

BLIPFT_FUZZ_TARGET(run_file) {
  using namespace blipft;
  static const testing::FuzzFolder folder;
  const std::string file = folder.write("run.yaml", input);
  testing::refuses_or_takes([&] {
    const std::string printed = to_yaml(load_config(file, {}));
    if (to_yaml(load_config(folder.write("again.yaml", printed), {})) != printed) std::abort();
  });
}
