// The index of a checkpoint, checkpoint.json, whose one file is there.
#include "fuzz/fuzz_target.h"
#include "io/state_files.h"

BLIPFT_FUZZ_TARGET(checkpoint) {
  using namespace blipft;
  static const testing::FuzzFolder folder;
  static const std::string file = folder.write("state-00000-of-00001.safetensors", std::string(200, 'x'));
  const auto read = [&](std::string_view text) {
    folder.write("checkpoint.json", text);
    testing::refuses_or_takes([&] { io::index_text(io::read_index(folder.path())); });
  };
  read(input);
  // With the checksum of whatever it says, what lies behind the checksum is reached.
  if (const size_t end = input.rfind('}'); end != std::string::npos) read(io::with_checksum(std::string(input.substr(0, end))));
}
