// The golden models with pictures: weights and pictures that follow from names, and the folders written from them.
#include "models/vision_golden.h"

#include <set>

#include "io/safetensors_header.h"

using namespace blipft;
using namespace blipft::testing;
using nlohmann::json;

namespace {

double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return std::sqrt(sum);
}

/// Checks the written folder of a case: its tensors, and that its numbers are about these tensors.
void check_case(const json& golden) {
  const TemporaryDirectory folder;
  write_vision_model(golden, folder);
  for (const auto& [file, numbers, count] : {std::tuple{"model.safetensors", golden, golden["tensors"].size()},
                                             {"adapter/adapter_model.safetensors", golden["lora"], golden["lora"]["tensors"].size()}}) {
    const io::FileDescriptor opened = io::open_for_reading(folder / file);
    const auto header = io::read_safetensors_header(opened, folder / file);
    CHECK(header.size() == count);
    CHECK(numbers["gradients"].size() == count);
    double sum = 0;
    for (const auto& [name, gradient] : numbers["gradients"].items()) {
      const double norm = gradient[0], probe = gradient[1];
      sum += norm * norm;
      CHECK(numbers["steps"].contains(name));
      CHECK(std::fabs(probe) <= norm * 30);     // of at most some thousand uniform numbers
    }
    if (numbers.contains("gradient_norm"))
      CHECK(std::sqrt(sum) == doctest::Approx(numbers["gradient_norm"].get<double>()).epsilon(1e-6));
  }
}

}  // namespace

TEST_SUITE("vision golden") {
  TEST_CASE("weights and pictures that follow from names") {
    const std::vector<float> head = named_weights("lm_head.weight", {96, 48}, false);
    CHECK(head[0] == -0.16771486f);
    CHECK(head[1] == 0.24639001f);
    CHECK(named_weights("model.language_model.norm.weight", {48}, false)[0] == 0.97541761f);
    CHECK(named_picture("q3a.picture0", 1, 2) == std::vector<uint8_t>{123, 56, 92, 183, 207, 146});
    CHECK(norm_of(head) == doctest::Approx(std::sqrt(96)).epsilon(0.02));
    CHECK(named_probe("x", {0, 0, 1}) != named_probe("x", {0, 1, 0}));
  }

  TEST_CASE("each set has a published model and 39 drawn ones") {
    for (const auto& [set, loss, mistakes] : {std::tuple{"vision_qwen3_vl", 4.784448, 18}, {"vision_qwen2_5_vl", 5.089348, 7},
                                              {"vision_gemma3", 5.907274, 10}}) {
      CAPTURE(set);
      const std::vector<json> cases = vision_cases(set);
      REQUIRE(cases.size() == 40);
      CHECK(cases[0]["loss"].get<double>() == doctest::Approx(loss).epsilon(1e-6));
      CHECK(cases[0]["mistakes"].size() == mistakes);
      std::set<size_t> pictures;
      for (const json& golden : cases) {
        CAPTURE(golden["name"].dump());
        check_case(golden);
        for (const json& sample : golden["samples"]) {
          CHECK(sample["ids"].size() == sample["label"].size());
          pictures.insert(sample["pictures"].size());
        }
      }
      CHECK(pictures == std::set<size_t>{0, 1, 2, 3, 4});
    }
  }
}
