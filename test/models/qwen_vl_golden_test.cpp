// Qwen2.5-VL and Qwen3-VL against transformers and PEFT: the published golden models and 39 drawn ones of each.
#include <set>

#include "models/vision_trainer.h"

using namespace blipft;
using namespace blipft::testing;
using nlohmann::json;

namespace {
const std::vector<std::string> kSets = {"vision_qwen3_vl", "vision_qwen2_5_vl"};
}

TEST_SUITE("vision golden") {
  TEST_CASE("Qwen-VL: the published models, and none of the losses that a mistake gives") {
    for (const std::string& set : kSets) {
      const json golden = vision_cases(set)[0];
      for (const int64_t padding : {0, 3}) check_vision_case(golden, false, padding);
      check_vision_case(golden, true, 0);
      const double loss = VisionTrainer(golden, {}).step(0).loss;
      for (const json& mistake : golden["mistakes"]) CHECK(std::fabs(mistake[1].get<double>() - loss) > 5e-5);
      CHECK(VisionTrainer(golden, {.precision = Precision::bf16_true}).step(0).loss ==
            doctest::Approx(golden["bf16_loss"].get<double>()).epsilon(2e-3));  // two ways to round
    }
  }

  TEST_CASE("Qwen-VL: drawn models and pictures agree in loss, gradients, three steps, and adapters [slow]") {
    for (const std::string& set : kSets) {
      const std::vector<json> cases = vision_cases(set);
      for (size_t i = 1; i < cases.size(); ++i)
        for (const bool adapter : {false, true}) check_vision_case(cases[i], adapter, static_cast<int64_t>(i % 3));
    }
  }

  TEST_CASE("Qwen-VL: all-linear means PEFT's modules, language those of the language model, and PEFT finds them again") {
    for (const std::string& set : kSets) {
      const json golden = vision_cases(set)[0];
      const VisionTrainer all(golden, {.targets = {"all-linear"}}), language(golden, {.targets = {"language"}});
      std::set<std::string> expected, of_language;
      for (const json& tensor : golden["lora"]["tensors"]) {
        expected.insert(tensor[0]);
        if (tensor[0].get<std::string>().find(".language_model.") != std::string::npos) of_language.insert(tensor[0]);
      }
      for (const auto& [trainer, names] : {std::pair{&all, expected}, {&language, of_language}}) {
        std::set<std::string> found;
        for (const auto& [name, values] : trainer->trained(false)) found.insert(name);
        CHECK(found == names);
      }
      const auto targets = [](const VisionTrainer& trainer) {
        return json::parse(adapter_config({trainer.config.model, trainer.config.adapter, trainer.config}, trainer.model->units()))["target_modules"];
      };
      CHECK(targets(all) == golden["lora"]["config"]["target_modules"]);
      for (const json& target : targets(language)) CHECK(target.get<std::string>().find("linear_fc") == std::string::npos);
    }
  }

  TEST_CASE("Qwen-VL: recomputed layers give the same bits, and parts can be frozen") {
    for (const std::string& set : kSets) {
      const json golden = vision_cases(set)[0];
      VisionTrainer kept(golden, {});
      kept.step(0);
      const auto all = kept.trained(true);
      for (const char* act_ckpt : {"half", "full"}) {
        VisionTrainer again(golden, {.act_ckpt = act_ckpt});
        again.step(0);
        CHECK(again.trained(true) == all);
      }
      for (const std::vector<std::string>& freeze : {std::vector<std::string>{"vision"}, {"merger"}, {"language"}, {"vision", "merger"},
                                                     {"vision", "language"}, {"merger", "language"}}) {
        VisionTrainer part(golden, {.freeze = freeze});
        part.step(0);
        const auto found = part.trained(true);
        CHECK(found.size() > 0);
        CHECK(found.size() < all.size());
        for (const auto& [name, gradient] : found) CHECK_MESSAGE(gradient == all.at(name), name);
      }
    }
  }
}
