// Gemma 3 with pictures: sizes of the published models, names of checkpoints, texts without pictures, and what is refused.
#include "blipft/family.h"
#include "checkpoint/saving.h"
#include "io/json.h"
#include "models/vision_trainer.h"
#include "strategies/strategy_harness.h"
#include "support/error_message.h"
#include "weights/stored_tensors.h"

using namespace blipft;
using namespace blipft::testing;
using nlohmann::json;

namespace {

std::unique_ptr<Model> gemma3(const json& config, bool pictures = true) {
  const TemporaryDirectory folder;
  folder.write("config.json", config.dump());
  ModelSettings settings;
  settings.pictures = pictures;
  return make_model(folder.path.string(), settings);
}

json published(const char* name) {
  return json::parse(read_text_file(concat("share/models/", name, "/config.json")));
}

}  // namespace

TEST_SUITE("gemma3 pictures") {
  TEST_CASE("the published models have as many parameters as their files") {
    for (const auto& [name, parameters, text] : {std::tuple{"gemma-3-4b", 4300079472, 3880263168}, {"gemma-3-12b", 12187325040, 11766034176}}) {
      CAPTURE(name);
      const json config = published(name);
      const auto model = gemma3(config);
      CHECK(model->parameter_count() == parameters);
      CHECK(gemma3(config, false)->parameter_count() == text);
      const ModelInputs inputs = model->inputs();
      CHECK(inputs.patches == PatchInputs{.side = 14, .merge = 4, .picture_side = 16});
      CHECK(inputs.text.picture_id == 262144);
      CHECK(inputs.text.last_keys);
    }
    // Keys that are absent have the values of transformers' classes.
    const auto model = gemma3({{"model_type", "gemma3"}, {"mm_tokens_per_image", 49}, {"text_config", {{"num_hidden_layers", 1}}}});
    CHECK(model->inputs().patches == PatchInputs{.side = 16, .merge = 2, .picture_side = 7});
    CHECK(model->description().find("vision 12 x 768") != std::string::npos);
  }

  TEST_CASE("checkpoints with any of the names of transformers' versions are the same model") {
    json golden = vision_cases("vision_gemma3")[0];
    const double loss = golden["loss"];
    for (const auto& [name, other] : {std::pair{"vision_tower.", "vision_tower.vision_model."},
                                      {"vision_tower.", "model.vision_tower."},
                                      {"vision_tower.", "model.vision_tower.vision_model."},
                                      {"multi_modal_projector.", "model.multi_modal_projector."},
                                      {"language_model.model.", "model.language_model."}}) {
      json renamed = golden;
      for (json& tensor : renamed["tensors"])
        if (const auto file = tensor[0].get<std::string>(); file.starts_with(name)) tensor[0] = other + file.substr(strlen(name));
      CHECK(renamed != golden);
      CHECK(VisionTrainer(renamed, {}).step(0).loss == doctest::Approx(loss).epsilon(1e-6));
    }
    // PEFT's names are those of the module tree, which had vision_model too.
    std::map<std::string, std::vector<float>> adapters;
    for (json& tensor : golden["lora"]["tensors"]) {
      const auto name = tensor[0].get<std::string>();
      const size_t at = name.find("vision_tower.");
      if (at == std::string::npos) continue;
      const std::string older = std::string(name).insert(at + strlen("vision_tower."), "vision_model.");
      tensor[0] = older;
      adapters[name] = named_weights(older, tensor[1], false);
    }
    CHECK(adapters.size() > 0);
    const auto loaded = VisionTrainer(golden, {.adapter = true}).trained(false);
    for (const auto& [name, values] : adapters) CHECK_MESSAGE(loaded.at(name) == values, name);
  }

  TEST_CASE("texts without pictures: the tower runs on padding and gets no gradient, the rest is the text model's") {
    json golden = vision_cases("vision_gemma3")[0];
    for (json& sample : golden["samples"]) {
      sample["pictures"].clear();
      for (json& id : sample["ids"])
        if (id == 90) id = 7;
    }
    VisionTrainer whole(golden, {}), text(golden, {.change = [](Config& config) { config.model.pictures = false; }});
    CHECK(text.model->inputs().patches == PatchInputs{});
    CHECK(whole.step(0).loss == text.step(0).loss);
    const auto of_text = text.trained(true);
    for (const auto& [name, gradient] : whole.trained(true)) {
      CAPTURE(name);
      if (of_text.contains(name)) CHECK(gradient == of_text.at(name));
      else CHECK(std::count(gradient.begin(), gradient.end(), 0.0f) == std::ssize(gradient));
    }
  }

  TEST_CASE("what is refused, by file and key") {
    const json good = published("gemma-3-4b");
    const auto refused = [&](const std::string& pointer, const json& value) {
      json config = good;
      config[json::json_pointer(pointer)] = value;
      return message_of([&] { gemma3(config); });
    };
    for (const auto& [pointer, value, expected] : std::vector<std::tuple<std::string, json, std::string>>{
             {"/mm_tokens_per_image", 200, "mm_tokens_per_image: found 200, expected the square of a divisor of 64"},
             {"/mm_tokens_per_image", 9, "mm_tokens_per_image: found 9"},
             {"/image_token_index", 262208, "image_token_index: found 262208, expected a number below vocab_size, 262208"},
             {"/vision_config/image_size", 900, "vision_config.image_size: found 900, expected a multiple of patch_size, 14"},
             {"/vision_config/num_attention_heads", 7, "vision_config.num_attention_heads: found 7"},
             {"/vision_config/hidden_act", "gelu", "vision_config.hidden_act: found \"gelu\""},
             {"/vision_config/model_type", "clip_vision_model", "vision_config.model_type: found \"clip_vision_model\""},
             {"/vision_config/num_channels", 1, "vision_config.num_channels: found 1"},
             {"/vision_config/attention_dropout", 0.1, "vision_config.attention_dropout: found 0.1"}}) {
      const std::string message = refused(pointer, value);
      CHECK_MESSAGE(message.find("config.json: " + expected) != std::string::npos, message);
    }
    const TemporaryDirectory folder;
    folder.write("config.json", good.dump());
    folder.write("preprocessor_config.json", R"({"do_pan_and_scan": true, "size": {"height": 896, "width": 896}})");
    const ImageProcessor& defaults = family_of(folder.path.string()).pixels;
    const auto read = [&] { return ImageProcessor::from_directory(folder.path.string(), defaults); };
    CHECK(defaults.image_size == 896);     // of all published models
    CHECK(message_of(read).find("preprocessor_config.json: key \"do_pan_and_scan\" is true") != std::string::npos);
    folder.write("preprocessor_config.json", R"({"do_pan_and_scan": null, "resample": 2, "size": {"height": 896, "width": 896}})");
    CHECK(read().image_size == 896);
    CHECK(read().statistics.mean[0] == 0.5f);
  }

  TEST_CASE("a saved model keeps the tensors that the tower does not read") {
    json golden = vision_cases("vision_gemma3")[0];
    const std::string name = "vision_tower.vision_model.head.probe";
    golden["tensors"].push_back({name, name, {1, 1, 32}});
    const TemporaryDirectory folder;
    const VisionTrainer trainer(golden, {.change = [](Config& config) { config.output.save_model = true; }});
    const SafetensorsReader base(trainer.config.model.path);
    save_weights({trainer.model->units(), &trainer.engine->store, trainer.engine->strategy.get(), trainer.device.get(), trainer.ops.get(),
                  trainer.arena->scratch()},
                 mpi_world(), {folder / "model", trainer.config.model.path, SaveSettings::of(trainer.config).at(0), &base, ""});
    const SafetensorsReader saved(folder / "model");
    CHECK(saved.tensors().size() == base.tensors().size());
    REQUIRE(saved.tensors().contains(name));
    CHECK(same_numbers(base, *base.tensors().find(name), saved, *saved.tensors().find(name)));
  }
}
