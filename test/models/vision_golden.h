// The golden sets of vision-language models: tools/blipft_golden/vision_models.py says what a case holds.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "support/golden_files.h"

namespace blipft::testing {

/// The cases of a set, such as "vision_qwen3_vl".
inline std::vector<nlohmann::json> vision_cases(const std::string& set) {
  std::ifstream in(golden_path(set + "/cases.json"));
  std::vector<nlohmann::json> cases;
  for (std::string line; std::getline(in, line);) cases.push_back(nlohmann::json::parse(line));
  return cases;
}

/// Random words that follow from a name.
class NamedWords {
 public:
  explicit NamedWords(const std::string& name) {
    for (const char byte : name) next_ = (next_ ^ static_cast<uint8_t>(byte)) * 0x100000001B3;
  }
  uint64_t word() {
    uint64_t z = next_;
    next_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  /// From -1 to 1.
  double uniform() { return static_cast<double>(word() >> 40) / (1 << 23) - 1; }

 private:
  uint64_t next_ = 0xCBF29CE484222325;
};

/// The weights of a parameter by its name in the module tree; `less_one`: a norm that is stored less 1.
inline std::vector<float> named_weights(const std::string& name, const std::vector<int64_t>& shape, bool less_one) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const double scale = shape.size() < 2 ? 0.1 : std::sqrt(static_cast<double>(3 * shape[0]) / static_cast<double>(count));
  const double offset = shape.size() < 2 && name.ends_with(".weight") && !less_one ? 1 : 0;
  NamedWords words(name);
  std::vector<float> weights(static_cast<size_t>(count));
  for (float& weight : weights) weight = static_cast<float>(words.uniform() * scale + offset);
  return weights;
}

/// u8 [height, width, 3]
inline std::vector<uint8_t> named_picture(const std::string& name, int64_t height, int64_t width) {
  NamedWords words(name);
  std::vector<uint8_t> pixels(static_cast<size_t>(height * width * 3));
  for (uint8_t& pixel : pixels) pixel = static_cast<uint8_t>(words.word() >> 56);
  return pixels;
}

/// The projection of a gradient or of a change, which a case holds beside its norm.
inline double named_probe(const std::string& name, const std::vector<float>& values) {
  NamedWords words("probe." + name);
  double sum = 0;
  for (const float value : values) sum += value * words.uniform();
  return sum;
}

/// A safetensors file with f32 tensors, in this order.
struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};
inline std::string safetensors_of(const std::vector<NamedTensor>& tensors) {
  nlohmann::ordered_json header;
  std::string data;
  for (const auto& [name, shape, values] : tensors) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  std::string file;
  for (int byte = 0; byte < 8; ++byte) file += static_cast<char>(text.size() >> 8 * byte);
  return file + text + data;
}

/// Writes config.json and model.safetensors of a case, and its adapter in adapter/.
inline void write_vision_model(const nlohmann::json& golden, const TemporaryDirectory& folder) {
  const bool norms_less_one = golden["config"]["model_type"] == "gemma3";
  std::vector<NamedTensor> tensors, adapter;
  for (const nlohmann::json& tensor : golden["tensors"]) {
    const std::string tree = tensor[1];
    const bool less_one = norms_less_one && (tree.find("language_model") != std::string::npos ||
                                             tree.find("mm_soft_emb_norm") != std::string::npos);
    tensors.push_back({tensor[0], tensor[2], named_weights(tree, tensor[2], less_one)});
  }
  for (const nlohmann::json& tensor : golden["lora"]["tensors"])
    adapter.push_back({tensor[0], tensor[1], named_weights(tensor[0], tensor[1], false)});
  folder.write("config.json", golden["config"].dump());
  folder.write("model.safetensors", safetensors_of(tensors));
  folder.write("adapter/adapter_config.json", golden["lora"]["config"].dump());
  folder.write("adapter/adapter_model.safetensors", safetensors_of(adapter));
}

}  // namespace blipft::testing
