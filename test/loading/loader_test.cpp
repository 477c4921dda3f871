// DataLoader: layout of a step, text padding and packing, labels, failures, and ending at any moment.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <numeric>
#include <set>
#include <thread>

#include "blipft/error.h"
#include "blipft/loading.h"
#include "blipft/pictures.h"
#include "loading/loader_fixture.h"
#include "loading/sampler_settings.h"
#include "support/choice_of.h"
#include "support/error_message.h"
#include "support/golden_files.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

/// Checks one batch against the definition in batch.h, computed anew from the dataset.
void check_batch(const HostBatch& batch, const std::vector<Sampler::Slot>& slots, const SmallDataset& dataset,
                 const Config& config) {
  const BatchLayout& layout = batch.layout;
  const int64_t size = 12;
  const ByteTokenizer tokenizer;
  std::vector<std::vector<int32_t>> captions;
  int64_t cut = 0;
  for (const Sampler::Slot& slot : slots) {
    captions.push_back(tokenizer.encode(SmallDataset::text(slot.sample)));
    cut += static_cast<int64_t>(captions.back().size()) > config.data.max_text_tokens;
    captions.back().resize(std::min<size_t>(captions.back().size(), static_cast<size_t>(config.data.max_text_tokens)));
  }
  int64_t used = 0, without_target = 0;
  for (int64_t m = 0; m < layout.micro_batches(); ++m) {
    size_t longest = 0;
    for (int64_t b = 0; b < layout.batch_size(); ++b)
      longest = std::max(longest, captions[m * layout.batch_size() + b].size());
    float count = 0;
    const int64_t tokens = layout.text().tokens, first = m * layout.batch_size();
    const int32_t* labels = part<int32_t>(batch, BatchField::labels) + m * layout.labels();
    int64_t text_rows = 0;
    for (int64_t i = first; i < first + layout.batch_size(); ++i) {
      CAPTURE(i);
      const std::vector<int32_t>& caption = captions[i];
      const int64_t length = static_cast<int64_t>(caption.size());
      used += length;
      without_target += length == 1;
      CHECK(part<int32_t>(batch, BatchField::lengths)[i] == length);
      CHECK(part<int64_t>(batch, BatchField::sample_keys)[i] == slots[i].key);
      const int32_t* start = layout.text().packed() ? part<int32_t>(batch, BatchField::starts) + i + m : nullptr;
      const int64_t rows = start ? start[1] - start[0] : tokens;  // of the text: nothing is before it here
      CHECK((rows >= length && rows <= tokens));
      text_rows += rows;
      for (int64_t t = 0; t < tokens; ++t)
        CHECK(part<int32_t>(batch, BatchField::ids)[i * tokens + t] == (t < length ? caption[t] : 1));
      for (int64_t t = 0; t + 1 < rows; ++t) {
        int32_t label = -100;
        if (t + 1 < length) label = caption[t + 1];
        else if (config.steps.loss_on_padding && t + 1 < static_cast<int64_t>(longest)) label = 1;
        CHECK(*labels++ == label);
        count += label >= 0;
      }
      const auto encoded = dataset.read(slots[i].sample);
      const Image decoded = decode_image(encoded.picture->data(), encoded.picture->size(), "x");
      const Image expected = resize_picture(decoded, size, size);
      const uint8_t* pixels = part<uint8_t>(batch, BatchField::pixels) + i * size * size * 3;
      CHECK(!std::memcmp(pixels, expected.rgb.data(), expected.rgb.size()));
    }
    CHECK(part<float>(batch, BatchField::label_counts)[m] == count);
    if (layout.text().packed()) CHECK(text_rows == layout.text().packed_rows);
  }
  CHECK(batch.text_tokens_used == used);
  CHECK(batch.texts_without_target == without_target);
  CHECK(batch.texts_cut == cut);
}

}  // namespace

TEST_SUITE("loader") {
  TEST_CASE("loader: packed, a step has the same samples, balanced so that all micro-batches are about as long") {
    auto dataset = std::make_shared<SmallDataset>(31);
    Config config = small_config();
    config.data.max_text_tokens = 40;
    config.steps.max_epochs = 2;
    config.steps.batch_size = 4;
    config.steps.accumulate_grad_batches = 3;
    config.data.text_padding = TextPadding::packed;
    HostDevice device;
    const auto loader = make_loader(config, dataset, device);
    Sampler::Settings s = settings(31, 4, 3);
    s.seed = 5;
    const Sampler sampler(s);
    const auto shapes = possible_text_shapes(config);
    int64_t smaller = 0;
    while (const HostBatch* batch = loader->next()) {
      const BatchLayout& layout = batch->layout;
      CHECK(std::count(shapes.begin(), shapes.end(), layout.text()) == 1);
      const std::vector<Sampler::Slot> sampled = sampler.slots(batch->step);
      std::vector<Sampler::Slot> slots;        // in the order of the batch
      for (size_t i = 0; i < sampled.size(); ++i) {
        const int64_t key = part<int64_t>(*batch, BatchField::sample_keys)[i];
        const auto found =
            std::find_if(sampled.begin(), sampled.end(), [&](const auto& slot) { return slot.key == key; });
        REQUIRE(found != sampled.end());
        slots.push_back(*found);
      }
      check_batch(*batch, slots, *dataset, config);
      int64_t maximum = 0, all = 0;
      for (int64_t m = 0; m < 3; ++m) {
        const int32_t* lengths = part<int32_t>(*batch, BatchField::lengths) + m * 4;
        const int64_t sum = std::accumulate(lengths, lengths + 4, int64_t{0});
        maximum = std::max(maximum, sum);
        all += sum;
      }
      CHECK(maximum <= layout.text().packed_rows);
      CHECK(layout.text().packed_rows < maximum + 8);  // the next multiple of 8
      CHECK(3 * maximum <= all + 3 * 22);            // within the longest caption
      smaller += layout.text().packed_rows < 4 * 22;
      loader->give_back(batch);
    }
    CHECK(smaller > 0);
  }

  TEST_CASE("loader: every step holds what batch.h says") {
    auto dataset = std::make_shared<SmallDataset>(31);
    for (const bool padding : {false, true})
      for (const char* text_padding : {"longest", "max", "packed"})
        for (const int64_t rank : {0, 1}) {
          if (padding && text_padding == std::string("packed")) continue;  // not to be had
          Config config = small_config();
          if (text_padding == std::string("packed"))
            config.steps.loss_normalization = LossNormalization::micro_batch;  // samples keep their micro-batch; else it is balanced
          config.steps.loss_on_padding = padding;
          config.data.text_padding = choice_of<TextPadding>(text_padding);
          config.steps.max_epochs = 3;
          CAPTURE(padding);
          CAPTURE(text_padding);
          HostDevice device;
          const auto loader = make_loader(config, dataset, device, rank, 2);
          Sampler::Settings s = settings(31, 3, config.steps.accumulate_grad_batches, 2, rank);
          s.seed = 5;
          const Sampler sampler(s);
          const int64_t steps = 31 / (6 * config.steps.accumulate_grad_batches);
          CHECK(loader->steps_per_epoch() == steps);
          CHECK(loader->total_steps() == 3 * steps);
          const auto shapes = possible_text_shapes(config);
          for (int64_t step = 0; step < 3 * steps; ++step) {
            CAPTURE(step);
            const HostBatch* batch = loader->next();
            REQUIRE(batch);
            CHECK(batch->step == step);
            CHECK(batch->epoch == step / steps);
            CHECK(std::count(shapes.begin(), shapes.end(), batch->layout.text()) == 1);
            check_batch(*batch, sampler.slots(step), *dataset, config);
            loader->give_back(batch);
          }
          CHECK(loader->next() == nullptr);
          CHECK(device.allocated == config.data.prefetch_steps);
        }
  }

  TEST_CASE("loader: pictures are turned and laid on white as the config says") {
    class TurnedDataset final : public Dataset {
     public:
      std::vector<uint8_t> picture = read_bytes(testing::golden_path("images/orientation_exif.png"));  // half transparent too
      int64_t size() const override { return 6; }
      Sample read(int64_t) const override { return {"a picture", {{"text", true}}, picture}; }
    };
    const auto dataset = std::make_shared<TurnedDataset>();
    std::vector<std::vector<uint8_t>> results;
    for (const bool turn : {true, false})
      for (const char* transparency : {"white", "drop"}) {
        Config config = small_config();
        config.data.exif_orientation = turn;
        config.data.transparency = choice_of<Transparency>(transparency);
        HostDevice device;
        const auto loader = make_data_loader(config, 0, 1, small_pictures(), possible_text_shapes(config),
                                             std::make_shared<ByteTokenizer>(), {dataset}, device);
        const Image decoded = decode_image(dataset->picture.data(), dataset->picture.size(), "x",
                                           {turn, transparency == std::string("white")});
        const Image expected = resize_picture(decoded, 12, 12);
        const uint8_t* pixels = part<uint8_t>(*loader->next(), BatchField::pixels);
        results.push_back(expected.rgb);
        CHECK(!std::memcmp(pixels, expected.rgb.data(), expected.rgb.size()));
      }
    for (size_t i = 0; i < results.size(); ++i)
      for (size_t j = 0; j < i; ++j) CHECK(results[i] != results[j]);
  }

  TEST_CASE("loader: T is the step's longest caption rounded up to 8") {
    auto dataset = std::make_shared<SmallDataset>(4);  // captions of 0, 7, 14, 21 letters and one special token
    Config config = small_config();
    config.steps.batch_size = config.steps.accumulate_grad_batches = 1;
    config.data.shuffle = false;
    config.data.text_padding = TextPadding::longest;
    HostDevice device;
    const auto loader = make_loader(config, dataset, device);
    for (const int64_t expected : {8, 8, 16, 20}) {
      const HostBatch* batch = loader->next();
      CHECK(batch->layout.text().tokens == expected);
      loader->give_back(batch);
    }
  }

  TEST_CASE("loader: the text shapes of the first steps are reported in advance, as far as requested") {
    auto dataset = std::make_shared<SmallDataset>(31);
    for (const char* text_padding : {"longest", "max", "packed"})
      for (const int64_t rank : {0, 1}) {
        CAPTURE(text_padding);
        CAPTURE(rank);
        Config config = small_config();
        config.data.text_padding = choice_of<TextPadding>(text_padding);
        config.data.max_text_tokens = 40;
        config.steps.batch_size = 1;
        config.steps.accumulate_grad_batches = 3;
        config.steps.max_epochs = 3;
        HostDevice device;
        const auto loader = make_loader(config, dataset, device, rank, 2);
        const std::vector<TextShape> reported = loader->first_text_shapes(31), some = loader->first_text_shapes(7);
        REQUIRE(static_cast<int64_t>(reported.size()) == loader->total_steps());
        CHECK(some.size() == 2);             // three samples a step
        CHECK(std::equal(some.begin(), some.end(), reported.begin()));
        std::set<int64_t> different;
        for (const TextShape& shape : reported) {
          const HostBatch* batch = loader->next();
          REQUIRE(batch);
          CHECK(batch->layout.text() == shape);
          different.insert(shape.tokens + 1000 * shape.packed_rows);
          loader->give_back(batch);
        }
        CHECK((different.size() > 1) == (text_padding != std::string("max")));
        CHECK(loader->first_text_shapes(31) == reported);
      }
  }

  TEST_CASE("loader: epochs after the first read nothing") {
    auto dataset = std::make_shared<SmallDataset>(12);
    Config config = small_config();
    config.data.num_workers = 1;
    config.steps.max_epochs = 4;
    HostDevice device;
    const auto loader = make_loader(config, dataset, device);
    while (const HostBatch* batch = loader->next()) loader->give_back(batch);
    CHECK(dataset->reads == 12);
  }

  TEST_CASE("loader: max_steps ends the run") {
    auto dataset = std::make_shared<SmallDataset>(12);
    Config config = small_config();
    config.steps.max_epochs = 10;
    config.steps.max_steps = 5;
    HostDevice device;
    auto loader = make_loader(config, dataset, device);
    CHECK(loader->total_steps() == 5);
    config.steps.max_epochs = -1;
    CHECK(make_loader(config, dataset, device)->total_steps() == 5);
    config.steps.max_steps = -1;
    CHECK_THROWS_AS(make_loader(config, dataset, device), UserError);
  }

  TEST_CASE("loader: wrong use is an error, not a hang") {
    auto dataset = std::make_shared<SmallDataset>(60);
    HostDevice device;
    const auto loader = make_loader(small_config(), dataset, device);
    const HostBatch* first = loader->next();
    const HostBatch* second = loader->next();
    CHECK_THROWS_AS(loader->next(), Error);
    loader->give_back(second);
    CHECK_THROWS_AS(loader->give_back(second), Error);
    const HostBatch* third = loader->next();
    CHECK(third->step == 2);
    loader->give_back(first);
    CHECK(loader->next()->step == 3);
  }

  TEST_CASE("loader: ends at any moment and frees its memory") {
    auto dataset = std::make_shared<SmallDataset>(60);
    dataset->delay = std::chrono::milliseconds(2);
    for (int round = 0; round < 12; ++round) {
      HostDevice device;
      {
        Config config = small_config();
        config.data.num_workers = 1 + round % 4;
        const auto loader = make_loader(config, dataset, device);
        std::this_thread::sleep_for(std::chrono::milliseconds(round));
        for (int step = 0; step < round % 3; ++step) loader->next();
      }
      CHECK(device.live == 0);
    }
  }

  TEST_CASE("loader: time blocked in next() is counted") {
    auto dataset = std::make_shared<SmallDataset>(6);
    dataset->delay = std::chrono::milliseconds(20);
    HostDevice device;
    const auto loader = make_loader(small_config(), dataset, device);
    loader->next();  // six samples of 20 ms on two workers
    CHECK(loader->wait_seconds() > 0.04);
    CHECK(loader->wait_seconds() < 10);
  }

  TEST_CASE("benchmark: photos with two workers (not checked)") {
    const char* shared = std::getenv("BLIPFT_SHARED");
    const std::string path = std::string(shared ? shared : "../shared") + "/data/captions";
    if (!std::filesystem::exists(path)) {
      std::cout << "SKIPPED: benchmark: photos with two workers (no " << path << ")\n";
      return;
    }
    Config config;
    config.data.num_workers = 2;
    config.steps.batch_size = 43;
    HostDevice device;
    for (const int64_t epochs : {1, 6}) {  // one epoch decodes each photo; five more only copy
      config.steps.max_epochs = epochs;
      const auto start = std::chrono::steady_clock::now();
      const auto loader = make_data_loader(config, 0, 1, {.picture_size = 224, .text = {.vocabulary = 256}},
                                           possible_text_shapes(config), std::make_shared<ByteTokenizer>(),
                                           {open_dataset(path, DatasetFormat::automatic)}, device);
      int64_t samples = 0;
      while (const HostBatch* batch = loader->next()) {
        samples += config.steps.batch_size;
        loader->give_back(batch);
      }
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      CHECK(samples == 86 * epochs);
      std::cout << "loader, 2 workers, " << epochs << " epochs of 86 photos: "
                << static_cast<double>(samples) / seconds << " samples/s\n";
    }
  }
}
