// DataLoader: samples that cannot be read end a run when they are due, or are skipped (data.on_bad_sample).
#include <doctest/doctest.h>

#include <cstring>
#include <set>

#include "loading/loader_fixture.h"
#include "loading/sampler_settings.h"
#include "support/error_message.h"
#include "support/golden_files.h"

using namespace blipft;
using namespace blipft::testing;

TEST_SUITE("bad samples") {
  TEST_CASE("loader: a sample that cannot be read ends the reported shapes, and fails where it is due") {
    struct Unreadable final : Dataset {
      int64_t size() const override { return 8; }
      Sample read(int64_t index) const override {
        if (index == 5) throw UserError("sample 5 is gone");
        return {concat("sample ", index), {{"abc", true}}, read_bytes(testing::golden_path(concat("images/", pictures[0])))};
      }
    };
    Config config = small_config();
    config.steps.batch_size = 1;
    config.data.shuffle = false;
    HostDevice device;
    const auto loader = make_data_loader(config, 0, 1, small_pictures(), possible_text_shapes(config),
                                         std::make_shared<ByteTokenizer>(), {std::make_shared<Unreadable>()},
                                         device);
    CHECK(loader->first_text_shapes(8).size() == 2);  // steps of two samples: 0 1, 2 3, 4 5
    for (int step = 0; step < 2; ++step) loader->give_back(loader->next());
    CHECK(message_of([&] { loader->next(); }) == "sample 5 is gone; data.on_bad_sample=skip leaves such samples out");
  }

  TEST_CASE("loader: a broken picture is named when its step is due") {
    auto dataset = std::make_shared<SmallDataset>(30);
    dataset->broken = 8;  // step 1 of 6 samples each
    Config config = small_config();
    config.data.shuffle = false;
    HostDevice device;
    {
      const auto loader = make_loader(config, dataset, device);
      const HostBatch* batch = loader->next();
      CHECK(batch->step == 0);
      loader->give_back(batch);
      for (int again = 0; again < 2; ++again) {
        const std::string message = message_of([&] { loader->next(); });
        CHECK_MESSAGE(message.find("sample 8") != std::string::npos, message);
        CHECK_MESSAGE(message.ends_with("; data.on_bad_sample=skip leaves such samples out"), message);
      }
    }
    CHECK(device.live == 0);
  }

  TEST_CASE("loader: a broken picture may be skipped: its place is empty, the others are as ever") {
    Config config = small_config();
    config.data.shuffle = false;
    config.steps.max_epochs = 2;
    config.data.text_padding = TextPadding::max;
    HostDevice device;
    const auto batch_of = [&](int64_t broken, const std::function<void(const HostBatch&)>& look) {
      auto dataset = std::make_shared<SmallDataset>(12);
      dataset->broken = broken;
      const auto loader = make_loader(config, dataset, device);
      for (const HostBatch* batch; (batch = loader->next()); loader->give_back(batch)) look(*batch);
    };
    config.data.on_bad_sample = FaultAction::skip;
    std::vector<std::vector<int32_t>> labels;
    std::vector<float> counts;
    batch_of(-1, [&](const HostBatch& batch) {
      CHECK(batch.bad_samples.empty());
      const int32_t* at = part<int32_t>(batch, BatchField::labels);
      labels.emplace_back(at, at + batch.layout.micro_batches() * batch.layout.labels());
    });
    batch_of(8, [&](const HostBatch& batch) {
      const bool hit = batch.step % 2 == 1;  // samples 6 to 11; sample 8 is the third of its first micro-batch
      REQUIRE(batch.bad_samples.size() == (hit ? 1 : 0));
      if (hit) CHECK(batch.bad_samples[0].find("sample 8") != std::string::npos);
      const int64_t rows = batch.layout.labels() / batch.layout.batch_size();
      const int32_t* at = part<int32_t>(batch, BatchField::labels);
      const std::vector<int32_t>& ordinary = labels[static_cast<size_t>(batch.step)];
      int64_t count = 0;
      for (int64_t i = 0; i < static_cast<int64_t>(ordinary.size()); ++i) {
        const bool gone = hit && i / rows == 2;
        CHECK(at[i] == (gone ? -100 : ordinary[static_cast<size_t>(i)]));
        count += at[i] != -100 && i < batch.layout.labels();
      }
      CHECK(part<float>(batch, BatchField::label_counts)[0] == static_cast<float>(count));
      const uint8_t* pixels = part<uint8_t>(batch, BatchField::pixels) + 2 * 12 * 12 * 3;
      CHECK(std::all_of(pixels, pixels + 12 * 12 * 3, [](uint8_t p) { return p == 0; }) == hit);
    });
    CHECK(device.live == 0);
  }

  TEST_CASE("loader: samples that all cannot be read are not skipped for ever") {
    Config config = small_config();
    config.data.on_bad_sample = FaultAction::skip;
    config.data.path = "photos";
    config.steps.max_epochs = 20;
    auto dataset = std::make_shared<SmallDataset>(6);
    dataset->all_broken = true;
    HostDevice device;
    const auto loader = make_loader(config, dataset, device);
    const std::string message = message_of([&] {
      while (const HostBatch* batch = loader->next()) loader->give_back(batch);
    });
    CHECK_MESSAGE(message.find("32 samples in a row could not be read") != std::string::npos, message);
    CHECK_MESSAGE(message.find("is photos still there?") != std::string::npos, message);
  }
}
