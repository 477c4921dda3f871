// Validation samples: which are kept, and in which batches they come.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

#include "blipft/error.h"
#include "blipft/config.h"
#include "blipft/loading.h"
#include "datasets/record_checks.h"
#include "loading/step_order.h"
#include "loading/text_shapes.h"
#include "loading/text_survey.h"
#include "support/byte_tokenizer.h"
#include "support/choice_of.h"
#include "support/error_message.h"
#include "text/chat_template.h"

using namespace blipft;
using testing::ByteTokenizer;
using testing::check_parts;
using testing::message_of;
using testing::TemporaryDirectory;

namespace {

/// Sample i has 1 + i % 9 letters.
class Words final : public Dataset {
 public:
  explicit Words(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  Sample read(int64_t index) const override {
    return {concat("word ", index), {{std::string(static_cast<size_t>(1 + index % 9), 'w'), true}}, {}};
  }

 private:
  int64_t size_;
};

Config validation_config() {
  Config config;
  config.file = "run.yaml";
  config.data.path = "words";
  config.data.max_text_tokens = 20;
  config.steps.batch_size = 4;
  config.steps.accumulate_grad_batches = 3;
  return config;
}

/// Each sample is a group by itself.
std::vector<int64_t> alone(int64_t samples) {
  std::vector<int64_t> groups(static_cast<size_t>(samples));
  std::iota(groups.begin(), groups.end(), 0);
  return groups;
}

const ModelInputs kText{.text = {.vocabulary = 128, .max_tokens = 100}};

}  // namespace

TEST_SUITE("validation") {
  TEST_CASE("one sample cannot be split, and the message says so") {
    Config config = validation_config();
    config.data.val_split_fraction = 0.5;
    const std::string message = message_of([&] { split_samples(config, alone(1)); });
    CHECK_MESSAGE(message.find("data.val_split_fraction: found 1 sample at ") != std::string::npos, message);
    CHECK_MESSAGE(message.find("a split needs at least two") != std::string::npos, message);
    CHECK_MESSAGE(message.find("between") == std::string::npos, message);
  }

  TEST_CASE("a share is split off by the seed alone: disjoint, ascending, about as asked") {
    Config config = validation_config();
    for (const int64_t samples : {2, 10, 101, 5000})
      for (const double share : {0.1, 0.5, 0.9}) {
        config.data.val_split_fraction = share;
        if (samples == 2 && share != 0.5) {
          const std::string message = message_of([&] { split_samples(config, alone(samples)); });
          const char* what = share < 0.5 ? "leaves no sample for validation" : "leaves no sample for training";
          CHECK_MESSAGE(message.find(what) != std::string::npos, message);
          CHECK_MESSAGE(message.find("run.yaml: data.val_split_fraction") != std::string::npos, message);
          continue;
        }
        const Split split = split_samples(config, alone(samples));
        CHECK(std::is_sorted(split.training.begin(), split.training.end()));
        CHECK(std::is_sorted(split.validation.begin(), split.validation.end()));
        std::set<int64_t> all(split.training.begin(), split.training.end());
        all.insert(split.validation.begin(), split.validation.end());
        CHECK(static_cast<int64_t>(all.size()) == samples);
        CHECK(split.training.size() + split.validation.size() == all.size());
        CHECK(std::abs(static_cast<double>(split.validation.size()) - share * static_cast<double>(samples)) <= 0.5);
        CHECK(split_samples(config, alone(samples)).validation == split.validation);
        if (samples < 100) continue;
        config.steps.seed = 1;
        CHECK(split_samples(config, alone(samples)).validation != split.validation);
        config.steps.seed = 0;
      }
  }

  TEST_CASE("groups are held out whole, about as many samples as asked") {
    Config config = validation_config();
    config.data.val_split_fraction = 0.2;
    for (const int64_t seed : {0, 1, 2, 3}) {
      config.steps.seed = seed;
      std::vector<int64_t> groups;
      for (int64_t i = 0; i < 60; ++i) groups.push_back(i / 5);  // 12 pictures with 5 captions each
      const Split split = split_samples(config, groups);
      std::set<int64_t> training, validation;
      for (const int64_t i : split.training) training.insert(groups[static_cast<size_t>(i)]);
      for (const int64_t i : split.validation) validation.insert(groups[static_cast<size_t>(i)]);
      CHECK(split.training.size() + split.validation.size() == 60);
      CHECK(split.validation.size() == 10);
      CHECK(training.size() + validation.size() == 12);
      const Split two = split_samples(config, std::vector<int64_t>{0, 0, 0, 0, 0, 0, 0, 0, 1, 1});
      CHECK(two.validation.size() + two.training.size() == 10);
      CHECK(!two.training.empty());
      CHECK(!two.validation.empty());
    }
    check_parts(message_of([&] { split_samples(config, std::vector<int64_t>(10)); }),
                {"run.yaml: data.val_split_fraction: all 10 samples at ", "one picture or prompt", "data.val_path"});
  }

  TEST_CASE("pictures and prompts are the groups of a split; a prompt of most samples is none") {
    const TemporaryDirectory directory;
    Config config = validation_config();
    config.data.val_split_fraction = 0.25;
    const auto held_out_names = [&](const Dataset& dataset, const std::function<std::string(int64_t)>& name) {
      const Split split = split_samples(config, dataset, 2);
      std::set<std::string> training, validation, both;
      for (const int64_t i : split.training) training.insert(name(i));
      for (const int64_t i : split.validation) validation.insert(name(i));
      std::set_intersection(training.begin(), training.end(), validation.begin(), validation.end(),
                            std::inserter(both, both.end()));
      CHECK(both.empty());
      CHECK(!validation.empty());
      return split.validation.size();
    };
    std::string pictures, prompts, chats, same;
    for (int i = 0; i < 8; ++i) directory.write("p/" + std::to_string(i) + ".jpg", "x");
    for (int line = 0; line < 5; ++line)
      for (int i = 0; i < 8; ++i) {
        const std::string n = std::to_string(i), unique = n + "-" + std::to_string(line);
        pictures += R"({"file_name": ")" + std::string(line % 2 ? "./" : "") + n + R"(.jpg", "text": ")" + unique + "\"}\n";
        prompts += R"({"instruction": "do", "input": "q)" + n + R"(", "output": ")" + unique + "\"}\n";
        chats += R"({"messages": [{"role": "user", "content": "q)" + n + R"("}, {"role": "assistant", "content": ")" + unique +
                 "\"}]}\n";
        same += R"({"prompt": "Write.", "completion": ")" + unique + "\"}\n";
      }
    directory.write("p/metadata.jsonl", pictures);
    const auto folder = open_dataset(directory / "p", DatasetFormat::automatic);
    CHECK(held_out_names(*folder, [&](int64_t i) { return folder->read(i).segments[0].text.substr(0, 1); }) == 10);
    TextSettings settings;
    settings.chat_template = chat_format("chatml");
    for (const std::string& text : {prompts, chats}) {
      const auto records = open_dataset(directory.write("records.jsonl", text), DatasetFormat::automatic, settings);
      CHECK(held_out_names(*records, [&](int64_t i) { return records->read_prompt(i).text; }) == 10);
    }
    const auto common = open_dataset(directory.write("same.jsonl", same), DatasetFormat::automatic);
    CHECK(split_samples(config, *common).validation == split_samples(config, alone(40)).validation);
  }

  TEST_CASE("each sample comes once in a validation, over all ranks, and in the next; empty places learn nothing") {
    const auto device = make_cpu_device(1);
    const auto words = std::make_shared<Words>(26);
    for (const char* padding : {"packed", "longest", "max"})
      for (const bool loss_on_padding : {false, true})
        for (const int64_t world : {1, 2, 3}) {
          CAPTURE(padding);
          CAPTURE(world);
          Config config = validation_config();
          config.data.text_padding = choice_of<TextPadding>(padding);
          config.steps.loss_on_padding = loss_on_padding;
          if (loss_on_padding && padding == std::string("packed")) continue;  // not to be had
          std::map<int64_t, int64_t> seen;       // by key, which is the sample's number here
          double labels = 0;
          for (int64_t rank = 0; rank < world; ++rank) {
            const auto loader = make_validation_loader(config, rank, world, kText, possible_text_shapes(config),
                                                       std::make_shared<ByteTokenizer>(), {words}, *device);
            const int64_t steps = loader->steps_per_epoch();
            CHECK(steps == (26 + 4 * world - 1) / (4 * world));
            for (int64_t step = 0; step < 2 * steps; ++step) {
              const HostBatch* batch = loader->next();
              REQUIRE(batch);
              CHECK(batch->layout.micro_batches() == 1);
              CHECK(batch->texts_without_target == 0);
              const int64_t* keys = batch->layout.whole(BatchField::sample_keys, batch->block).as<int64_t>();
              const int32_t* lengths = batch->layout.whole(BatchField::lengths, batch->block).as<int32_t>();
              int64_t is_label = 0;
              for (int64_t i = 0; i < 4; ++i) {
                CHECK(lengths[i] == (keys[i] < 26 ? 2 + keys[i] % 9 : 0));
                if (keys[i] < 26) ++seen[keys[i]], is_label += lengths[i] - 1;
              }
              const float count = *batch->layout.whole(BatchField::label_counts, batch->block).as<float>();
              if (!loss_on_padding) CHECK(count == static_cast<float>(is_label));
              labels += count;
              loader->give_back(batch);
            }
          }
          CHECK(seen.size() == 26);
          for (const auto& [sample, times] : seen) CHECK(times == 2);
          // 1 + i % 9 letters are learnt; with padding, up to the longest of the four.
          if (loss_on_padding) CHECK(labels > 2 * 126);
          else CHECK(labels == 2 * 126);
        }
  }

  TEST_CASE("a limit leaves some batches, or is refused") {
    Config config = validation_config();
    CHECK(validation_steps(config, 2, 80) == 10);
    config.steps.limit_val_batches = 0.5;
    CHECK(validation_steps(config, 2, 80) == 5);
    config.steps.limit_val_batches = 3;
    CHECK(validation_steps(config, 2, 80) == 3);
    CHECK(validation_steps(config, 2, 8) == 1);
    config.steps.limit_val_batches = 0.01;
    const std::string message = message_of([&] { validation_steps(config, 2, 80); });
    const char* said = "run.yaml: train.limit_val_batches: 0.01 of the 10 batches";
    CHECK_MESSAGE(message.find(said) != std::string::npos, message);
  }

  TEST_CASE("text shapes hold the validation's batches too") {
    const auto device = make_cpu_device(1);
    Config config = validation_config();
    const auto survey = [&](int64_t size) {
      return survey_samples(config, {std::make_shared<Words>(size)}, ByteTokenizer(), {.text = {.vocabulary = 128}}, 1);
    };
    const SampleSet training = survey(36), validation = survey(26);
    for (const int64_t world : {1, 3}) {
      const std::vector<TextShape> shapes = surveyed_text_shapes(config, world, training, validation);
      CHECK(shapes.size() <= 16);
      for (int64_t rank = 0; rank < world; ++rank) {
        const auto loader = make_validation_loader(config, rank, world, kText, shapes,
                                                   std::make_shared<ByteTokenizer>(), validation, *device);
        for (int64_t step = 0; step < loader->steps_per_epoch(); ++step) {
          const HostBatch* batch = loader->next();
          CHECK(std::count(shapes.begin(), shapes.end(), batch->layout.text()) == 1);
          loader->give_back(batch);
        }
      }
    }
  }
}
