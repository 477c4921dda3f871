// A safetensors file; or, where the input begins with "{", the index of one whose only shard is a good file.
#include <vector>

#include "blipft/checkpoint.h"
#include "fuzz/fuzz_target.h"

BLIPFT_FUZZ_TARGET(safetensors) {
  using namespace blipft;
  static const testing::FuzzFolder folder;
  static const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  )";
  static const std::string shard =
      folder.write("s.safetensors", std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header +
                                        std::string(8, 'x'));
  const bool index = input.starts_with('{');
  folder.remove(index ? "model.safetensors" : "model.safetensors.index.json");
  folder.write(index ? "model.safetensors.index.json" : "model.safetensors", input);
  testing::refuses_or_takes([&] {
    const SafetensorsReader reader(folder.path());
    std::vector<char> bytes;
    for (const auto& [name, tensor] : reader.tensors()) {
      bytes.resize(static_cast<size_t>(tensor.end - tensor.begin));  // the file has them
      reader.read(name, 0, tensor.numel(), bytes.data());
    }
  });
}
