// Qwen2.5-VL, Qwen3-VL and Gemma 3 against transformers and PEFT: the published golden models and 39 drawn ones of each.
#include <set>

#include "agreement/output_folder.h"
#include "checkpoint/saving.h"
#include "models/vision_trainer.h"
#include "strategies/strategy_harness.h"
#include "weights/stored_tensors.h"

using namespace blipft;
using namespace blipft::testing;
using nlohmann::json;

namespace {
const std::vector<std::string> kSets = {"vision_qwen3_vl", "vision_qwen2_5_vl", "vision_gemma3"};
}

TEST_SUITE("vision golden") {
  TEST_CASE("the published models, and none of the losses that a mistake gives") {
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

  TEST_CASE("drawn models and pictures agree in loss, gradients, three steps, and adapters [slow]") {
    for (const std::string& set : kSets) {
      const std::vector<json> cases = vision_cases(set);
      for (size_t i = 1; i < cases.size(); ++i)
        for (const bool adapter : {false, true}) check_vision_case(cases[i], adapter, static_cast<int64_t>(i % 3));
    }
  }

  TEST_CASE("the published models and some drawn ones agree on the GPU, in f32 and in bf16") {
    if (!gpu_or_skip("models with towers on the GPU")) return;
    for (const std::string& set : kSets) {
      const std::vector<json> cases = vision_cases(set);
      for (size_t i = 0; i < 8; ++i)
        for (const bool adapter : {false, true}) check_vision_case(cases[i], adapter, static_cast<int64_t>(i % 3), DeviceKind::cuda);
      const VisionRun bf16{.precision = Precision::bf16_true, .device = DeviceKind::cuda};
      CHECK(VisionTrainer(cases[0], bf16).step(0).loss ==
            doctest::Approx(cases[0]["bf16_loss"].get<double>()).epsilon(2e-3));  // two ways to round
    }
  }

  TEST_CASE("all-linear means PEFT's modules, language those of the language model, and PEFT finds them again") {
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

  TEST_CASE("quantized weights with adapters, and products in fp8") {
    for (const std::string& set : kSets) {
      const json golden = vision_cases(set)[0];
      const double loss = golden["loss"];
      const std::vector<double> losses = golden["lora"]["losses"];
      VisionTrainer qlora(golden, {.adapter = true, .change = [](Config& config) { config.model.quantize = WeightQuantization::int8; }});
      int64_t quantized = 0;
      for (const Unit* unit : qlora.model->units())
        for (const Parameter& parameter : unit->parameters())
          quantized += qlora.hold->frozen_format(*unit, parameter) != nullptr && parameter.name.find(".vis") != std::string::npos;
      CHECK(quantized >= 2 * 6);           // of the tower's layers
      CHECK(qlora.step(1e-3).loss == doctest::Approx(losses[0]).epsilon(0.02));  // 8 bits
      for (int i = 0; i < 3; ++i) qlora.step(1e-3);
      CHECK(qlora.step(0).loss < 0.95 * losses[0]);
      VisionTrainer fp8(golden, {.precision = Precision::bf16_true, .change = [](Config& config) {
        config.train.matmul = MatmulType::fp8;
        config.train.fp8_least_size = 1;
      }});
      CHECK(fp8.step(0).loss == doctest::Approx(loss).epsilon(0.05));  // 3 bits behind the point, random errors
      for (int i = 0; i < 5; ++i) fp8.step(1e-3);
      CHECK(fp8.step(0).loss < 0.7 * loss);
    }
  }

  TEST_CASE("dropout of adapters does not depend on padding") {
    for (const std::string& set : kSets) {
      const json golden = vision_cases(set)[0];
      const auto loss = [&](int64_t padding, double dropout) {
        VisionRun run{.adapter = true, .padding = padding, .change = [](Config& config) { config.train.dropout = true; }};
        if (dropout > 0) run.change = [](Config& config) { config.train.dropout = true, config.adapter.dropout = 0.25; };
        return VisionTrainer(golden, run).step(0).loss;
      };
      CHECK(loss(3, 0.25) == doctest::Approx(loss(0, 0.25)).epsilon(1e-5));
      CHECK(std::fabs(loss(0, 0.25) - loss(0, 0)) > 0.01);
    }
  }

  TEST_CASE("saved models and adapters have the numbers of their folders, by the names of transformers' modules") {
    for (const std::string& set : kSets)
      for (const bool adapter : {false, true}) {
        const json golden = vision_cases(set)[0];
        const VisionTrainer trainer(golden, {.adapter = adapter});
        std::map<std::string, std::string> in_tree;
        for (const json& tensor : golden["tensors"]) in_tree[tensor[0]] = tensor[1];
        const TemporaryDirectory out;
        Config config = trainer.config;
        config.output.path = out.path.string();
        config.output.save_model = true;
        const SafetensorsReader base(config.model.path);
        save_weights({trainer.model->units(), &trainer.engine->store, trainer.engine->strategy.get(), trainer.device.get(), trainer.ops.get(),
                      trainer.arena->scratch()},
                     mpi_world(), {output_names(config).saved.at(0), config.model.path, SaveSettings::of(config).at(0), &base,
                                   adapter_config({config.model, config.adapter, config}, trainer.model->units())});
        const char* const file = adapter ? "adapter_model" : "model";
        const SafetensorsReader saved(output_names(config).saved.at(0), file), source(adapter ? config.adapter.path : config.model.path, file);
        CHECK(saved.tensors().size() == source.tensors().size());
        for (const auto& stored : source.tensors()) {
          CAPTURE(stored.first);
          const auto found = saved.tensors().find(adapter ? stored.first : in_tree.at(stored.first));
          REQUIRE(found != saved.tensors().end());
          CHECK(found->second.shape == stored.second.shape);
          CHECK(same_numbers(saved, *found, source, stored));
        }
      }
  }

  TEST_CASE("recomputed layers give the same bits, and parts can be frozen") {
    for (const std::string& set : kSets) {
      const json golden = vision_cases(set)[0];
      VisionTrainer kept(golden, {});
      kept.step(0);
      const auto all = kept.trained(true);
      const auto into_host = [](Config& config) { config.parallel.offload = {OffloadedData::activations}; };
      for (const VisionRun& run : {VisionRun{.act_ckpt = "half"}, {.act_ckpt = "full"}, {.act_ckpt = "full", .change = into_host}}) {
        VisionTrainer again(golden, run);
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
