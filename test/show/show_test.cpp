// --show: the samples that it reads are those that the loader puts into batches.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "io/file.h"
#include "loading/loader_fixture.h"
#include "show/sample_viewer.h"
#include "support/temporary_directory.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

/// A model's folder without weights: config.json of a golden model, whose vocabulary has all ids of the tokenizers.
void write_model(const TemporaryDirectory& folder, const std::string& golden) {
  auto config = nlohmann::json::parse(io::read_whole_file(golden_path(golden + "/config.json"), 1 << 20));
  for (const char* part : {"", "text_config", "qformer_config"}) {
    if (*part && !config.contains(part)) continue;
    auto& section = *part ? config[part] : config;
    if (section.contains("vocab_size")) section["vocab_size"] = 200000;
    if (section.contains("max_position_embeddings")) section["max_position_embeddings"] = 256;
  }
  folder.write("model/config.json", config.dump());
  if (config.contains("vision_config"))
    folder.write("model/preprocessor_config.json", nlohmann::json{{"size", config["vision_config"]["image_size"]}}.dump());
  const auto copy = [&](const std::string& from, const std::string& to) {
    folder.write("model/" + to, io::read_whole_file(golden_path("tokenizer/" + from), 1 << 24));
  };
  copy("digits/tokenizer.json", "tokenizer.json");
  copy("digits/tokenizer_config.json", "tokenizer_config.json");
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    if (golden.find("instructblip") != std::string::npos) copy(concat("bert_json/", file), concat("qformer_tokenizer/", file));
}

/// Ids and trained ids of one text, as both sides have them.
struct Text {
  std::vector<int32_t> ids, trained, source, instruction;
  bool operator==(const Text&) const = default;
};

Text of_viewer(const TokenizedText& text) {
  Text out{text.ids, {}, text.source, text.instruction};
  for (size_t i = 1; i < text.ids.size(); ++i)
    if (text.is_label[i]) out.trained.push_back(text.ids[i]), out.trained.push_back(static_cast<int32_t>(i));
  return out;
}

std::vector<int32_t> row_of(const Tensor& rows, const Tensor& lengths, int64_t b) {
  const auto* ids = static_cast<const int32_t*>(rows.data) + b * rows.shape[1];
  return {ids, ids + static_cast<const int32_t*>(lengths.data)[b]};
}

/// The samples of all steps, of batches with texts of one length (data.text_padding: max).
std::vector<Text> of_loader(const Config& config, const ModelInputs& inputs, std::vector<std::vector<uint8_t>>& pixels) {
  RunData data = open_run_data(config, inputs, 1, 1);
  HostDevice device;
  const auto loader = make_data_loader(config, 0, 1, inputs, data.text_shapes, data.tokenizer, data.training,
                                       device, 0, data.instructions);
  std::vector<Text> texts;
  while (const HostBatch* batch = loader->next()) {
    const MicroBatch rows = batch->layout.micro_batch(batch->block, 0);
    for (int64_t b = 0; b < rows.samples; ++b) {
      Text text{row_of(rows.text.ids, rows.text.lengths, b), {}, {}, {}};
      const int64_t labels = rows.text.ids.shape[1] - 1;
      for (int64_t i = 0; i < labels; ++i) {
        const int32_t label = static_cast<const int32_t*>(rows.text.labels.data)[b * labels + i];
        if (label >= 0) text.trained.push_back(label), text.trained.push_back(static_cast<int32_t>(i) + 1);
      }
      if (inputs.has_source()) text.source = row_of(rows.source.ids, rows.source.lengths, b);
      if (inputs.instruction) text.instruction = row_of(rows.instruction.ids, rows.instruction.lengths, b);
      texts.push_back(std::move(text));
      if (!inputs.has_picture()) continue;
      const auto* first = static_cast<const uint8_t*>(rows.pixels.data) + b * inputs.picture_size * inputs.picture_size * 3;
      pixels.emplace_back(first, first + inputs.picture_size * inputs.picture_size * 3);
    }
    loader->give_back(batch);
  }
  return texts;
}

int64_t check_same(const std::string& golden, const std::string& file, const std::string& data, void (*change)(Config&) = nullptr) {
  CAPTURE(golden);
  CAPTURE(data);
  const TemporaryDirectory folder;
  write_model(folder, golden);
  const std::string path = folder.write("data/" + file, data);
  for (const char* picture : {"gray.jpg", "rgba.png"})
    folder.write(concat("data/", picture), io::read_whole_file(golden_path(concat("images/", picture)), 1 << 24));
  Config config;
  config.model.path = folder / "model";
  config.model.init = InitialWeights::random;
  config.data.path = file.ends_with(".csv") || file.starts_with("metadata") ? folder / "data" : path;
  config.data.max_text_tokens = 24;
  config.data.text_padding = TextPadding::max;
  config.data.shuffle = false;
  config.data.num_workers = 1;
  config.steps.batch_size = 2;
  config.parallel.device = DeviceChoice::cpu;
  if (change) change(config);
  const SampleViewer viewer(config);
  std::vector<std::vector<uint8_t>> pixels;
  const std::vector<Text> trained = of_loader(config, viewer.inputs(), pixels);
  CHECK(trained.size() >= 2);
  int64_t cut = 0;
  size_t next = 0;
  for (const int64_t i : viewer.choose(100, false)) {
    const ShownSample shown = viewer.read(i);
    cut += shown.text.cut;
    CHECK(shown.text.cut == (shown.whole.size() > shown.text.size() || shown.whole.source_size() > shown.text.source_size()));
    if (!viewer.inputs().has_picture() && !shown.text.has_target()) continue;  // the survey leaves it out
    if (next == trained.size()) break;     // the rest fills no step
    CHECK(of_viewer(shown.text) == trained[next]);
    if (viewer.inputs().has_picture()) {
      const int64_t side = viewer.inputs().picture_size;
      CHECK(resize_picture(viewer.picture(shown.sample), side, side).rgb == pixels[next]);
    }
    ++next;
  }
  CHECK(next == trained.size());
  return cut;
}

const std::string kLong = " and so on and so on and so on and so on and so on and so on and so on and so on and so on and so on";

}  // namespace

TEST_SUITE("show") {
  TEST_CASE("samples are those of the loader's batches: texts") {
    const std::string instructions = R"({"instruction": "Add 1 and 2.", "input": "", "output": "3"})"
                                     "\n" R"({"instruction": "Say it.", "input": "7", "output": "seven)" + kLong + "\"}\n" +
                                     R"({"instruction": "Be silent.", "output": ""})" "\n"
                                     R"({"instruction": "Add 2 and 3.", "output": "5"})" "\n";
    for (const char* model : {"llama_gqa", "modern_qwen3"}) {
      const auto short_style = [](Config& config) {
        config.data.prompt_style = ChoiceOrText<PromptStyle>("{instruction}\n{input}\n");
        config.data.mask_prompt = true;
      };
      CHECK(check_same(model, "data.jsonl", instructions, short_style) == 1);
      CHECK(check_same(model, "data.jsonl", instructions) == 4);
      CHECK(check_same(model, "data.jsonl", R"({"prompt": "1 + 1 =", "completion": " 2"})" "\n"
                                            R"({"prompt": "2 + 1 =", "completion": " 3"})" "\n") == 0);
      CHECK(check_same(model, "data.csv", "text\nA text.\nAnother" + kLong + "\nA third.\n", [](Config& config) {
              config.data.path += "/data.csv";
            }) == 1);
      CHECK(check_same(model, "data.jsonl",
                       R"({"messages": [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "2"}]})" "\n"
                       R"({"messages": [{"role": "system", "content": "Count."}, {"role": "user", "content": "1?"}, )"
                       R"({"role": "assistant", "content": "2"}, {"role": "user", "content": "3?"}, )"
                       R"({"role": "assistant", "content": "4"}]})" "\n",
                       [](Config& config) {
                         config.data.chat_template = ChoiceOrText<TemplateChoice>("alpaca");
                         config.data.max_text_tokens = 60;
                       }) == 1);
    }
  }

  TEST_CASE("samples are those of the loader's batches: source and target") {
    CHECK(check_same("t5_v11", "data.jsonl",
                     R"({"prompt": "Translate: one", "completion": "eins"})" "\n"
                     R"({"prompt": "Translate: two)" + kLong + R"(", "completion": "zwei)" + kLong + "\"}\n") == 1);
  }

  TEST_CASE("samples are those of the loader's batches: pictures") {
    const std::string captions = R"({"file_name": "gray.jpg", "text": "a gray picture"})" "\n"
                                 R"({"file_name": "rgba.png", "text": "colours)" + kLong + "\"}\n";
    const std::string questions = R"({"file_name": "gray.jpg", "prompt": "Question: grey? Answer:", "answer": ["yes", "no", "yes"]})" "\n"
                                  R"({"file_name": "rgba.png", "prompt": "Question: what)" + kLong + R"(? Answer:", "answer": "it"})" "\n";
    for (const char* model : {"blip2_ordinary", "instructblip_ordinary"}) {
      CHECK(check_same(model, "metadata.jsonl", captions) == 1);
      CHECK(check_same(model, "metadata.jsonl", questions, [](Config& config) { config.data.mask_prompt = true; }) == 1);
      CHECK(check_same(model, "metadata.csv", "file_name,text\ngray.jpg,one\nrgba.png,two\n") == 0);
    }
    CHECK(check_same("t5_instructblip", "metadata.jsonl", questions) == 1);
  }

  TEST_CASE("random samples differ from the first ones and repeat with the seed") {
    const TemporaryDirectory folder;
    write_model(folder, "llama_gqa");
    std::string lines;
    for (int i = 0; i < 50; ++i) lines += concat("{\"text\": \"number ", i, "\"}\n");
    Config config;
    config.model.path = folder / "model";
    config.model.init = InitialWeights::random;
    config.data.path = folder.write("data.jsonl", lines);
    const SampleViewer viewer(config);
    CHECK(viewer.choose(3, false) == std::vector<int64_t>{0, 1, 2});
    const std::vector<int64_t> random = viewer.choose(8, true);
    CHECK(random.size() == 8);
    CHECK(random == SampleViewer(config).choose(8, true));
    config.steps.seed = 9;
    CHECK(random != SampleViewer(config).choose(8, true));
    CHECK(viewer.choose(80, true).size() == 50);
    config.data.num_train_samples = 2;
    CHECK(SampleViewer(config).choose(3, false) == std::vector<int64_t>{0, 1});
  }
}
