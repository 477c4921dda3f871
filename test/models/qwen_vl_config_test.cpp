// config.json of Qwen2.5-VL and Qwen3-VL: sizes of the published models, defaults, and what is refused.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "blipft/model.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"

using namespace blipft;
using namespace blipft::testing;
using nlohmann::json;

namespace {

std::unique_ptr<Model> made(const json& config, const ModelSettings& settings = {}) {
  const TemporaryDirectory folder;
  folder.write("config.json", config.dump());
  return make_model(folder.path.string(), settings);
}

json qwen3(const json& text, const json& vision, bool tied) {
  return {{"model_type", "qwen3_vl"}, {"tie_word_embeddings", tied}, {"text_config", text}, {"vision_config", vision}};
}
json small_qwen3() {
  return qwen3({{"vocab_size", 151936}, {"hidden_size", 2048}, {"intermediate_size", 6144}, {"num_hidden_layers", 28},
                {"num_attention_heads", 16}, {"num_key_value_heads", 8}, {"rope_theta", 5e6},
                {"rope_scaling", {{"mrope_interleaved", true}, {"mrope_section", {24, 20, 20}}, {"rope_type", "default"}}}},
               {{"depth", 24}, {"hidden_size", 1024}, {"intermediate_size", 4096}, {"deepstack_visual_indexes", {5, 11, 17}},
                {"out_hidden_size", 2048}},
               true);
}
/// As files on the hub are: the keys of the text stand at the root.
json small_qwen2_5() {
  return {{"model_type", "qwen2_5_vl"}, {"vocab_size", 151936}, {"hidden_size", 2048}, {"intermediate_size", 11008},
          {"num_hidden_layers", 36}, {"num_attention_heads", 16}, {"num_key_value_heads", 2}, {"rms_norm_eps", 1e-6},
          {"sliding_window", 32768}, {"use_sliding_window", false}, {"tie_word_embeddings", true}, {"image_token_id", 151655},
          {"rope_scaling", {{"type", "mrope"}, {"mrope_section", {16, 24, 24}}}},
          {"vision_config", {{"hidden_size", 1280}, {"out_hidden_size", 2048}, {"in_chans", 3}, {"spatial_patch_size", 14}}}};
}

void check_refused(json config, const char* pointer, const json& value, const std::vector<std::string>& parts) {
  config[json::json_pointer(pointer)] = value;
  const std::string message = message_of([&] { made(config); });
  CHECK_MESSAGE(message.find("config.json: ") != std::string::npos, pointer, ": ", message);
  for (const std::string& part : parts)
    CHECK_MESSAGE(message.find(part) != std::string::npos, "found \"", message, "\", expected \"", part, "\" in it");
}

}  // namespace

TEST_SUITE("vision config") {
  TEST_CASE("published models of Qwen-VL have as many parameters as here") {
    const auto text = [](int64_t layers, int64_t hidden, int64_t heads, int64_t inner) {
      return json{{"num_hidden_layers", layers}, {"hidden_size", hidden}, {"num_attention_heads", heads}, {"num_key_value_heads", 8},
                  {"intermediate_size", inner}};
    };
    CHECK(made(small_qwen3())->parameter_count() == 2127532032);
    json vision = small_qwen3()["vision_config"];
    vision["out_hidden_size"] = 2560;
    CHECK(made(qwen3(text(36, 2560, 32, 9728), vision, true))->parameter_count() == 4437815808);
    CHECK(made(qwen3(text(36, 4096, 32, 12288), {{"out_hidden_size", 4096}}, false))->parameter_count() == 8767123696);
    CHECK(made(qwen3(text(64, 5120, 64, 25600), {{"out_hidden_size", 5120}}, false))->parameter_count() == 33357390064);
    CHECK(made(small_qwen2_5())->parameter_count() == 3754622976);
    json large = small_qwen2_5();
    large.update({{"vocab_size", 152064}, {"hidden_size", 3584}, {"intermediate_size", 18944}, {"num_hidden_layers", 28},
                  {"num_attention_heads", 28}, {"num_key_value_heads", 4}, {"tie_word_embeddings", false}});
    large["vision_config"].erase("out_hidden_size");
    CHECK(made(large)->parameter_count() == 8292166656);
  }

  TEST_CASE("what a Qwen-VL reads") {
    const ModelInputs third = made(small_qwen3())->inputs(), second = made(small_qwen2_5())->inputs();
    for (const ModelInputs& inputs : {third, second}) {
      CHECK(inputs.text.pictures);
      CHECK(inputs.text.position_axes == 3);
      CHECK(inputs.text.picture_id == 151655);
      CHECK_FALSE(inputs.has_picture());
    }
    CHECK(third.patches == PatchInputs{.side = 16, .merge = 2});
    CHECK(second.patches == PatchInputs{.side = 14, .merge = 2, .window = 4});
    CHECK(third.text.max_tokens == 128000);
    json texts = small_qwen2_5(), nested = texts;  // as later releases save them
    for (const char* key : {"model_type", "vision_config", "image_token_id", "tie_word_embeddings"}) texts.erase(key);
    texts["hidden_size"] = 1024, texts["head_dim"] = 128, nested["text_config"] = texts, nested["vision_config"]["out_hidden_size"] = 1024;
    CHECK(made(nested)->description().find("36 x 1024") != std::string::npos);
  }

  TEST_CASE("a Qwen-VL is tied by its own flag, not by that of the text") {
    json config = small_qwen3();
    const int64_t tied = made(config)->parameter_count();
    config.erase("tie_word_embeddings");
    config["text_config"]["tie_word_embeddings"] = true;
    CHECK(made(config)->parameter_count() == tied + 151936 * 2048);
  }

  TEST_CASE("operations of a Qwen-VL: six for each parameter and row, and attention") {
    const auto model = made(small_qwen3());
    TextRows rows(1100);
    rows.picture_rows = 1024, rows.pictures = 1;
    double expected = 0;
    for (const Unit* unit : model->units()) {
      const auto parameters = static_cast<double>(unit->parameter_count());
      const bool layer = unit->name().find("layers.") != std::string::npos;
      if (unit->name().starts_with("vision")) expected += layer ? 6 * parameters * 4096 : 0;
      else if (unit->name().starts_with("merger")) expected += 6 * parameters * 1024;
      else expected += 6 * (layer ? parameters : unit->name() == "language.head" ? 151936.0 * 2048 : 0) * 1100;
    }
    expected += 4 * 24 * 3 * 4096.0 * 4096 * 1024 + 4 * 28 * 3 * 1100.0 * 550 * 2048;  // scores and values, forward and backward
    CHECK(model->flops(2, rows) == doctest::Approx(2 * expected).epsilon(0.01));  // biases, norms, the patches' own product
  }

  TEST_CASE("what config.json of a Qwen-VL is refused, by its key") {
    const json third = small_qwen3(), second = small_qwen2_5();
    check_refused(third, "/vision_config/hidden_act", "gelu", {"vision_config.hidden_act", "\"gelu\"", "gelu_pytorch_tanh"});
    check_refused(second, "/vision_config/hidden_act", "gelu", {"vision_config.hidden_act", "silu"});
    check_refused(third, "/vision_config/num_heads", 7, {"vision_config.num_heads", "7"});
    check_refused(third, "/vision_config/in_channels", 4, {"vision_config.in_channels", "4", "3"});
    check_refused(third, "/vision_config/out_hidden_size", 4096, {"vision_config.out_hidden_size", "4096", "2048"});
    check_refused(third, "/vision_config/num_position_embeddings", 2303, {"vision_config.num_position_embeddings", "2303", "square"});
    for (const json& taps : {json{11, 5}, json{5, 24}, json{-1}, json{5, 5}})
      check_refused(third, "/vision_config/deepstack_visual_indexes", taps, {"vision_config.deepstack_visual_indexes", taps.dump(), "24"});
    check_refused(third, "/vision_config/rope_parameters", {{"rope_theta", 100.0}}, {"vision_config.rope_parameters.rope_theta", "10000"});
    check_refused(third, "/text_config/rope_scaling/mrope_section", {24, 20, 21}, {"text_config.rope_scaling.mrope_section", "[24,20,21]", "64"});
    check_refused(third, "/text_config/rope_scaling/rope_type", "yarn", {"text_config.rope_scaling.rope_type", "yarn"});
    check_refused(third, "/text_config/attention_dropout", 0.1, {"text_config.attention_dropout", "0.1"});
    check_refused(third, "/image_token_id", 151936, {"image_token_id", "151936"});
    check_refused(third, "/quantization_config", {{"bits", 4}}, {"quantization_config"});
    check_refused(second, "/use_sliding_window", true, {"use_sliding_window", "true", "false"});
    check_refused(second, "/vision_config/window_size", 20, {"vision_config.window_size", "20", "28"});
    check_refused(second, "/rope_scaling/mrope_section", {16, 24}, {"rope_scaling.mrope_section", "[16,24]", "three"});
  }
}
