// The index of a checkpoint, checkpoint.json, whose one file is there.
#include "fuzz/fuzz_target.h"
#include "io/state_files.h"

BLIPFT_FUZZ_TARGET(checkpoint) {
  using namespace blipft;
  static const testing::FuzzFolder folder;
  static const std::string file = folder.write("state-00000-of-00001.safetensors", std::string(200, 'x'));
  folder.write("checkpoint.json", input);
  testing::refuses_or_takes([&] { io::index_text(io::read_index(folder.path())); });
}
