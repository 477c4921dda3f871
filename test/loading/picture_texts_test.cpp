// Pictures anywhere in texts: from records to the rows of batches.
#include <map>
#include <set>

#include "loading/picture_fixture.h"
#include "loading/step_order.h"
#include "support/error_message.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

struct Album {
  TemporaryDirectory folder;
  std::vector<std::vector<std::string>> pictures;  // of each record
  std::shared_ptr<const Dataset> dataset;

  /// Records with 0 to 3 pictures of odd sizes.
  explicit Album(int records, const std::vector<std::pair<int, int>>& sizes = {{13, 7}, {3, 40}, {1, 1}, {30, 31}, {64, 5}}) {
    for (size_t i = 0; i < sizes.size(); ++i)
      write_picture(folder, concat("p", i, ".jpg"),
                    random_picture(sizes[i].first, sizes[i].second, static_cast<uint32_t>(i)));
    std::mt19937 random(7);
    std::string lines;
    for (int i = 0; i < records; ++i) {
      std::vector<std::string>& own = pictures.emplace_back();
      std::string list, text = concat("q", i);
      for (uint32_t k = random() % 4; k > 0; --k) {
        own.push_back(concat("p", random() % sizes.size(), ".jpg"));
        list += concat(list.empty() ? "" : ", ", "\"", own.back(), "\"");
        text += concat("<image>", std::string(random() % 9, 'x'));
      }
      lines += concat("{\"images\": [", list, "], \"conversations\": [{\"from\": \"human\", \"value\": \"", text,
                      "\"}, {\"from\": \"gpt\", \"value\": \"", std::string(1 + random() % 20, 'y'), "\"}]}\n");
    }
    dataset = open_dataset(folder.write("records.jsonl", lines), DatasetFormat::automatic, picture_text_settings());
  }
};

Config album_config() {
  Config config = small_config();
  config.data.max_text_tokens = 60;
  config.data.max_pixels = 400;
  config.steps.max_epochs = 3;
  return config;
}

SampleSet surveyed(const Config& config, const Album& album, const ModelInputs& inputs = picture_inputs()) {
  const auto reader = std::make_shared<const PictureReader>(picture_reader(inputs));
  return survey_samples(config, {album.dataset, 0, nullptr, reader}, ByteTokenizer(), inputs, 2);
}

/// Checks the rows of one sample of a micro-batch, whose first row is `start`. Returns its text.
std::string check_sample(const StreamRows& text, const StreamRows& patches, int64_t start, int64_t b, const Album& album,
                         int64_t record) {
  const int32_t* ids = text.ids.as<int32_t>() + b * text.ids.cols();
  const int64_t length = text.lengths.as<int32_t>()[b];
  const PatchSettings settings = picture_reader().processor.patches;
  std::vector<uint8_t> seen, expected;
  std::string letters;
  for (int64_t t = 0; t < length; ++t) {
    const int32_t row = text.picture_of_row.as<int32_t>()[start + t];
    CHECK((ids[t] == '@') == (row >= 0));
    if (row < 0) {
      letters += static_cast<char>(ids[t]);
      continue;
    }
    CHECK(text.row_of_picture.as<int32_t>()[row] == start + t);
    const int64_t bytes = 4 * patches.pixels.cols();
    const uint8_t* cell = patches.pixels.as<uint8_t>() + row * bytes;
    seen.insert(seen.end(), cell, cell + bytes);
  }
  for (const std::string& name : album.pictures[static_cast<size_t>(record)]) {
    const std::vector<uint8_t> one = expected_patches(album.folder / name, settings);
    expected.insert(expected.end(), one.begin(), one.end());
  }
  CHECK(seen == expected);
  return letters;
}

}  // namespace

TEST_SUITE("pictures in texts") {
  TEST_CASE("batches have each sample's text, and the patches of its pictures at its placeholders") {
    const Album album(40);
    for (const int64_t world : {1, 2, 3}) {
      for (const TextPadding padding : {TextPadding::packed, TextPadding::longest}) {
        CAPTURE(world);
        Config config = album_config();
        config.data.text_padding = padding;
        const SampleSet set = surveyed(config, album);
        const std::vector<TextShape> shapes = surveyed_text_shapes(config, world, set);
        CHECK(shapes.size() <= 16);
        std::map<int64_t, std::set<int64_t>> steps;  // {step: samples}
        HostDevice device;
        for (int64_t rank = 0; rank < world; ++rank) {
          const auto order = deals_to_ranks(config, set) ? make_dealt_order(config, rank, world, set.texts->work(), 0)
                                                         : make_training_order(config, rank, world, 40, 0);
          CHECK(deals_to_ranks(config, set) == (padding == TextPadding::packed));
          const auto loader = make_data_loader(config, rank, world, picture_inputs(), shapes, std::make_shared<ByteTokenizer>(), set, device);
          while (const HostBatch* batch = loader->next()) {
            const std::vector<Sampler::Slot> slots = order->slots(batch->step);
            for (int64_t m = 0; m < 2; ++m) {
              const StreamRows text = batch->layout.stream(BatchStream::text, batch->block, m);
              const StreamRows patches = batch->layout.micro_batch(batch->block, m).patches;
              for (int64_t b = 0; b < 3; ++b) {
                const Sampler::Slot& slot = slots[static_cast<size_t>(m * 3 + b)];
                CHECK(text.sample_keys.as<int64_t>()[b] == slot.key);
                steps[batch->step].insert(slot.sample);
                const int64_t start = text.packing ? text.packing.starts.as<int32_t>()[b] : b * text.max_rows;
                const std::string letters = check_sample(text, patches, start, b, album, slot.sample);
                CHECK(letters.find(concat("[u]q", slot.sample)) == 0);
              }
              // No row of a picture is a label, and each sample's answer is.
              int64_t labels = 0;
              const int32_t* of = text.labels.as<int32_t>();
              for (int64_t i = 0; i < text.labels.numel(); ++i) {
                CHECK(of[i] != '@');
                labels += of[i] != -100;
              }
              CHECK(labels >= 3 * 2);
              CHECK(*batch->layout.of(BatchField::label_counts, batch->block, m).as<float>() == static_cast<float>(labels));
            }
            loader->give_back(batch);
          }
        }
        const Sampler whole(sampler_of_all_ranks(config, world, 40, 0));
        for (const auto& [step, samples] : steps) {
          std::set<int64_t> expected;
          for (const Sampler::Slot& slot : whole.slots(step)) expected.insert(slot.sample);
          CHECK(samples == expected);
        }
      }
    }
  }

  TEST_CASE("max_text_tokens counts no rows of pictures, and cuts between pictures") {
    const PictureReader reader = picture_reader();
    const TemporaryDirectory folder;
    write_picture(folder, "a.jpg", random_picture(8, 8, 1));
    const Dataset::Sample sample{.name = "s", .segments = {{"ab#cd", false}, {"e#f"}}, .whole = true, .pictures = {{"a", folder / "a.jpg"}, {"a", folder / "a.jpg"}}};
    const auto letters = [&](int64_t maximum) {
      const TokenizedText text = tokenize(sample, ByteTokenizer(), maximum, 256, {}, -1, &reader);
      CHECK(text.cut == (maximum < 10));
      for (const PictureSegment& picture : text.pictures) {
        CHECK(picture.cells() == 4);
        for (int64_t i = picture.first; i < picture.first + 4; ++i) CHECK(text.ids[static_cast<size_t>(i)] == '@');
      }
      return std::string(text.ids.begin(), text.ids.end()) + std::to_string(text.pictures.size());
    };
    CHECK(letters(99) == "ab<@@@@>cde<@@@@>f2");
    CHECK(letters(10) == "ab<@@@@>cde<@@@@>f2");
    CHECK(letters(9) == "ab<@@@@>cde<@@@@>2");
    CHECK(letters(8) == "ab<@@@@>cde<1");
    CHECK(letters(3) == "ab<0");
    CHECK(letters(4) == "ab<@@@@>1");
  }

  TEST_CASE("placeholders without pictures and the reverse are refused") {
    PictureReader reader = picture_reader();
    const TemporaryDirectory folder;
    write_picture(folder, "a.jpg", random_picture(8, 8, 1));
    const auto message = [&](const std::string& text, size_t pictures) {
      const Dataset::Sample sample{.name = "a.jsonl:7", .segments = {{text}}, .whole = true, .pictures = {pictures, {"a", folder / "a.jpg"}}};
      return message_of([&] { tokenize(sample, ByteTokenizer(), 50, 256, {}, -1, &reader); });
    };
    CHECK(message("x#y", 1).empty());
    CHECK(message("x", 0).empty());
    CHECK(message("x#y#", 1) == "a.jsonl:7: found 1 picture and 2 placeholders # in the text, expected as many of both. Check the chat "
                                "template (data.chat_template), and remove # from the record's texts.");
    CHECK(message("x", 2).starts_with("a.jsonl:7: found 2 pictures and 0 placeholders"));
    CHECK(message("x@", 0) == "a.jsonl:7: found @ without a picture in the text. Remove it from the record.");
    reader.max_pictures = 1;
    CHECK(message("x#y#", 2) == "a.jsonl:7: found 2 pictures, expected at most 1 (data.max_pictures). Raise data.max_pictures or remove "
                                "the sample.");
    reader.max_pictures = 0, reader.max_rows = 6;
    CHECK(message("x#y", 1).find("found 8 tokens and rows of pictures, expected at most 6") != std::string::npos);
  }

  TEST_CASE("shapes of photos of mixed sizes have little padding") {
    // Photos of the web and of cameras, 320 x 240 to 4000 x 3000, at an eighth of their size, as the cells here are: up to
    // 1024 cells.
    const Album album(1, {{500, 375}, {375, 500}, {240, 135}, {135, 240}, {80, 60}, {60, 80}, {53, 80}, {80, 53}, {160, 90}, {128, 96},
                          {62, 47}, {47, 62}, {302, 403}, {100, 75}, {40, 30}, {64, 64}, {200, 150}, {75, 50}});
    std::mt19937 random(3);
    std::string lines;
    for (int i = 0; i < 3000; ++i)
      lines += concat("{\"image\": \"p", random() % 18, ".jpg\", \"conversations\": [{\"from\": \"human\", \"value\": \"<image>\"}, ",
                      "{\"from\": \"gpt\", \"value\": \"", std::string(10 + random() % 60, 'y'), "\"}]}\n");
    const std::shared_ptr<const Dataset> dataset =
        open_dataset(album.folder.write("photos.jsonl", lines), DatasetFormat::automatic, picture_text_settings());
    PictureReader reader = picture_reader(picture_inputs(), 16384);
    reader.processor.patches.min_pixels = 1024;
    for (const auto& [batch, accumulate, world, maximum] : {std::tuple{8, 1, 1, 0.03}, {8, 2, 2, 0.03}, {2, 1, 1, 0.08}}) {
      Config config = album_config();
      config.data.max_text_tokens = 512;
      config.steps.batch_size = batch, config.steps.accumulate_grad_batches = accumulate, config.steps.max_epochs = 1;
      const SampleSet set = survey_samples(config, {dataset, 0, nullptr, std::make_shared<const PictureReader>(reader)},
                                           ByteTokenizer(), picture_inputs(), 2);
      const std::vector<TextShape> shapes = surveyed_text_shapes(config, world, set);
      CHECK(shapes.size() <= 16);
      const Sampler sampler(sampler_of_all_ranks(config, world, 3000, 0));
      const std::vector<int64_t> work = set.texts->work();
      double used = 0, rows = 0;
      for (int64_t step = 0; step < sampler.steps_per_epoch(); ++step) {
        const std::vector<Sampler::Slot> slots = dealt_slots(sampler.slots(step), work, accumulate * world);
        for (int64_t rank = 0; rank < world; ++rank) {
          std::vector<BatchSample> samples;
          for (int64_t m = 0; m < accumulate; ++m)
            for (int64_t b = 0; b < batch; ++b) {
              const int64_t sample = slots[static_cast<size_t>((m * world + rank) * batch + b)].sample;
              samples.push_back({set.texts->text(sample).texts.front()});
              used += static_cast<double>(work[static_cast<size_t>(sample)]);
            }
          const TextShape shape = smallest_shape(shapes, samples, batch, reader.patches);
          rows += static_cast<double>(accumulate * (shape.packed_rows + shape.pictures.rows));
        }
      }
      MESSAGE("batch ", batch, " x ", accumulate, " on ", world, ": ", 100 * (1 - used / rows), " % padding, ", shapes.size(), " shapes");
      CHECK(1 - used / rows < maximum);
    }
  }
}
