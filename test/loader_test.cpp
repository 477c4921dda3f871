// Sampler and DataLoader: order, layout of a step, text padding, labels, failures, and ending at any moment.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numeric>
#include <set>
#include <thread>

#include "blipft/data.h"
#include "blipft/error.h"
#include "data/picture_cache.h"

using namespace blipft;

namespace {

/// Host memory only, counted.
class HostDevice final : public Device {
 public:
  int64_t allocated = 0, live = 0;
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string name() const override { return "host memory"; }
  void* allocate_host(int64_t bytes) override {
    ++allocated, ++live;
    return std::aligned_alloc(256, static_cast<size_t>(bytes));
  }
  void free_host(void* memory) override {
    --live;
    std::free(memory);
  }
  void* allocate(int64_t) override { throw Error("not used here"); }
  void free(void*) override {}
  MemoryInfo memory() const override { return {}; }
  Stream compute_stream() const override { return {}; }
  Stream comm_stream() const override { return {}; }
  Stream copy_stream() const override { return {}; }
  Event create_event() override { return {}; }
  void record(Event, Stream) override {}
  void wait(Stream, Event) override {}
  bool reached(Event) override { return true; }
  void synchronize(Event) override {}
  void synchronize(Stream) override {}
  void synchronize() override {}
  void copy(void*, const void*, int64_t, Stream) override {}
  void zero(void*, int64_t, Stream) override {}
  void timestamp(int64_t*, Stream) override {}
  std::unique_ptr<Graph> capture(Stream, const std::function<void()>&) override { return nullptr; }
  void bind_thread() const override {}
};

/// Id 2, then each byte's value.
class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(const std::string& text) const override {
    std::vector<int32_t> ids = {2};
    for (char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(const std::vector<int32_t>&, bool) const override { return ""; }
  int64_t vocab_size() const override { return 256; }
  int32_t pad_id() const override { return 1; }
};

const char* const pictures[] = {"baseline_420.jpg", "gray.jpg", "rgba.png", "palette.png"};

std::vector<uint8_t> read_bytes(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE_MESSAGE(in.good(), "cannot open " << file);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Sample i: picture i % 4 and a caption of (7 * i) % 23 letters.
class SmallDataset final : public Dataset {
 public:
  explicit SmallDataset(int64_t size) : size_(size) {
    for (const char* picture : pictures) pictures_.push_back(read_bytes(std::string("test/golden/images/") + picture));
  }
  int64_t broken = -1;                        ///< this sample's picture is cut
  std::chrono::milliseconds delay{0};
  mutable std::atomic<int64_t> reads{0};

  int64_t size() const override { return size_; }
  static std::string text(int64_t index) {
    return std::string(static_cast<size_t>(7 * index % 23), static_cast<char>('a' + index % 26));
  }
  Sample read(int64_t index) const override {
    ++reads;
    std::this_thread::sleep_for(delay);
    Sample sample{concat("sample ", index), text(index), pictures_[index % 4]};
    if (index == broken) sample.picture.resize(sample.picture.size() / 2);
    return sample;
  }

 private:
  int64_t size_;
  std::vector<std::vector<uint8_t>> pictures_;
};

Config small_config() {
  Config config;
  config.data.num_workers = 2;
  config.data.prefetch_steps = 2;
  config.data.max_text_tokens = 20;
  config.train.batch_size = 3;
  config.train.accumulate_grad_batches = 2;
  config.train.seed = 5;
  return config;
}

ImageProcessor small_pictures() {
  ImageProcessor processor;
  processor.image_size = 12;
  return processor;
}

template <class T>
const T* part(const HostBatch& batch, int64_t offset) {
  return reinterpret_cast<const T*>(static_cast<const char*>(batch.block) + offset);
}

std::unique_ptr<DataLoader> make_loader(const Config& config, const std::shared_ptr<SmallDataset>& dataset,
                                        Device& device,
                                        int64_t rank = 0, int64_t world = 1) {
  return make_data_loader(config, rank, world, small_pictures(), std::make_shared<ByteTokenizer>(), dataset, device);
}

/// Checks one batch against the definition in data.h, computed anew from the dataset.
void check_batch(const HostBatch& batch, const std::vector<Sampler::Slot>& slots, const SmallDataset& dataset,
                 const Config& config) {
  const BatchLayout& layout = batch.layout;
  const int64_t size = 12;
  const ByteTokenizer tokenizer;
  std::vector<std::vector<int32_t>> captions;
  for (const Sampler::Slot& slot : slots) {
    captions.push_back(tokenizer.encode(SmallDataset::text(slot.sample)));
    captions.back().resize(std::min<size_t>(captions.back().size(), static_cast<size_t>(config.data.max_text_tokens)));
  }
  int64_t used = 0;
  for (int64_t m = 0; m < layout.micro_batches; ++m) {
    size_t longest = 0;
    for (int64_t b = 0; b < layout.batch_size; ++b)
      longest = std::max(longest, captions[m * layout.batch_size + b].size());
    float count = 0;
    const int64_t tokens = layout.text().of(m, layout.micro_batches), first = m * layout.batch_size;
    const int32_t* ids = part<int32_t>(batch, layout.ids_offset()) + first * layout.text_tokens;
    const int32_t* labels = part<int32_t>(batch, layout.labels_offset()) + first * (layout.text_tokens - 1);
    for (int64_t i = first; i < first + layout.batch_size; ++i) {
      CAPTURE(i);
      const std::vector<int32_t>& caption = captions[i];
      const int64_t length = static_cast<int64_t>(caption.size());
      used += length;
      CHECK(part<int32_t>(batch, layout.lengths_offset())[i] == length);
      CHECK(part<int64_t>(batch, layout.keys_offset())[i] == slots[i].key);
      for (int64_t t = 0; t < tokens; ++t)
        CHECK(ids[(i - first) * tokens + t] == (t < length ? caption[t] : 1));
      for (int64_t t = 0; t + 1 < tokens; ++t) {
        int32_t label = -100;
        if (t + 1 < length) label = caption[t + 1];
        else if (config.train.loss_on_padding && t + 1 < static_cast<int64_t>(longest)) label = 1;
        CHECK(labels[(i - first) * (tokens - 1) + t] == label);
        count += label >= 0;
      }
      const auto encoded = dataset.read(slots[i].sample);
      const Image decoded = decode_image(encoded.picture.data(), encoded.picture.size(), "x");
      const Image expected = resize_bicubic(decoded, size, size);
      const uint8_t* pixels = part<uint8_t>(batch, layout.pixels_offset()) + i * size * size * 3;
      CHECK(!std::memcmp(pixels, expected.rgb.data(), expected.rgb.size()));
    }
    CHECK(part<float>(batch, layout.counts_offset())[m] == count);
  }
  CHECK(batch.text_tokens_used == used);
}

Sampler::Settings settings(int64_t size, int64_t batch, int64_t micro, int64_t world = 1, int64_t rank = 0) {
  Sampler::Settings s;
  s.dataset_size = size, s.batch_size = batch, s.micro_batches = micro, s.world = world, s.rank = rank, s.seed = 11;
  return s;
}

/// The global batch of a step, in its order: [micro-batch, rank, sample].
std::vector<Sampler::Slot> global_slots(Sampler::Settings s, int64_t step) {
  std::vector<std::vector<Sampler::Slot>> ranks;
  for (s.rank = 0; s.rank < s.world; ++s.rank) ranks.push_back(Sampler(s).slots(step));
  std::vector<Sampler::Slot> all;
  for (int64_t m = 0; m < s.micro_batches; ++m)
    for (const auto& slots : ranks)
      all.insert(all.end(), slots.begin() + m * s.batch_size, slots.begin() + (m + 1) * s.batch_size);
  return all;
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_SUITE("loader") {
  TEST_CASE("sampler: an epoch is a permutation, the next epoch another one") {
    const Sampler sampler(settings(60, 5, 2));
    CHECK(sampler.steps_per_epoch() == 6);
    CHECK(sampler.samples_per_epoch() == 60);
    std::vector<int64_t> epochs[2];
    int64_t key = 0;
    for (int64_t step = 0; step < 12; ++step) {
      CHECK(sampler.epoch_of(step) == step / 6);
      for (const auto& slot : sampler.slots(step)) {
        epochs[step / 6].push_back(slot.sample);
        CHECK(slot.key == key++);
      }
    }
    for (const auto& epoch : epochs) CHECK(std::set<int64_t>(epoch.begin(), epoch.end()).size() == 60);
    CHECK(epochs[0] != epochs[1]);
    std::vector<int64_t> sorted = epochs[0];
    std::sort(sorted.begin(), sorted.end());
    CHECK(sorted != epochs[0]);
    // A step that was already drawn comes out the same after another epoch was looked at.
    CHECK(sampler.slots(2)[3].sample == epochs[0][23]);
    Sampler::Settings other = settings(60, 5, 2);
    other.seed = 12;
    const auto start = Sampler(other).slots(0);
    CHECK((start[0].sample != epochs[0][0] || start[1].sample != epochs[0][1]));
  }

  TEST_CASE("sampler: positions are evenly likely") {
    // 2000 epochs of 6 samples: each of the 36 (position, sample) counts is binomial with mean 333 and standard
    // deviation 16.7; 5.5 of them are exceeded by chance with probability under 1e-5 over all 36.
    const Sampler sampler(settings(6, 6, 1));
    int counts[6][6] = {};
    for (int64_t epoch = 0; epoch < 2000; ++epoch) {
      const auto slots = sampler.slots(epoch);
      for (int p = 0; p < 6; ++p) ++counts[p][slots[p].sample];
    }
    for (const auto& row : counts)
      for (int count : row) CHECK(std::abs(count - 333) < 92);
  }

  TEST_CASE("sampler: the global batch does not depend on how it is dealt") {
    const auto one = global_slots(settings(100, 12, 1), 3);
    for (const auto& s : {settings(100, 3, 1, 4), settings(100, 3, 4), settings(100, 2, 2, 3),
                          settings(100, 6, 1, 2)}) {
      const auto other = global_slots(s, 3);
      REQUIRE(other.size() == one.size());
      for (size_t i = 0; i < one.size(); ++i) {
        CHECK(other[i].sample == one[i].sample);
        CHECK(other[i].key == one[i].key);
      }
    }
  }

  TEST_CASE("sampler: repeats, subsets, fractions") {
    Sampler::Settings s = settings(86, 64, 1);
    s.num_train_samples = 512;
    const Sampler repeated(s);
    CHECK(repeated.steps_per_epoch() == 8);
    std::vector<int> uses(86);
    for (int64_t step = 0; step < 8; ++step)
      for (const auto& slot : repeated.slots(step)) ++uses[slot.sample];
    CHECK(*std::min_element(uses.begin(), uses.end()) == 5);  // 512 = 5 * 86 + 82
    CHECK(*std::max_element(uses.begin(), uses.end()) == 6);

    s = settings(86, 10, 1);
    s.num_train_samples = 30;
    s.shuffle = false;
    const Sampler first(s);
    CHECK(first.steps_per_epoch() == 3);
    CHECK(first.slots(1)[0].sample == 10);
    CHECK(first.slots(5)[9].sample == 29);
    CHECK(first.slots(5)[9].key == 59);

    s = settings(100, 10, 1);
    s.limit_train_batches = 0.35;
    CHECK(Sampler(s).steps_per_epoch() == 3);
    CHECK(Sampler(s).samples_per_epoch() == 30);
    s.limit_train_batches = 4;
    CHECK(Sampler(s).steps_per_epoch() == 4);
    s.limit_train_batches = 400;
    CHECK(Sampler(s).steps_per_epoch() == 10);
    s.limit_train_batches = 0.05;
    CHECK(message_of([&] { Sampler{s}; }).find("limit_train_batches") != std::string::npos);
    const std::string message = message_of([] { Sampler{settings(100, 30, 2, 2)}; });
    CHECK(message.find("100") != std::string::npos);
    CHECK(message.find("120") != std::string::npos);
  }

  TEST_CASE("text lengths") {
    DataSection data;
    CHECK(possible_text_lengths(data) == std::vector<int64_t>{8, 16, 24, 32, 40, 48, 50});
    data.max_text_tokens = 16;
    CHECK(possible_text_lengths(data) == std::vector<int64_t>{8, 16});
    data.text_padding = "max";
    CHECK(possible_text_lengths(data) == std::vector<int64_t>{16});
    data.max_text_tokens = 1;
    CHECK(possible_text_lengths(data) == std::vector<int64_t>{2});
  }

  TEST_CASE("text shapes") {
    Config config;
    config.train.accumulate_grad_batches = 4;
    config.data.max_text_tokens = 40;
    CHECK(possible_text_shapes(config) == std::vector<TextShape>{{8, 8}, {16, 16}, {24, 24}, {32, 32}, {40, 40}});
    config.data.group_by_length = true;
    CHECK(possible_text_shapes(config) == std::vector<TextShape>{{8, 8}, {16, 16}, {16, 24}, {24, 24}, {16, 32},
                                                                 {32, 32}, {16, 40}, {32, 40}, {40, 40}});
    config.train.accumulate_grad_batches = 1;
    CHECK(possible_text_shapes(config).size() == 5);
    config.train.accumulate_grad_batches = 4;
    config.data.text_padding = "max";
    CHECK(possible_text_shapes(config) == std::vector<TextShape>{{40, 40}});
  }

  TEST_CASE("loader: grouped by length, a step has the same samples with less padding") {
    auto dataset = std::make_shared<SmallDataset>(31);
    Config config = small_config();
    config.data.max_text_tokens = 40;
    config.train.max_epochs = 2;
    config.train.batch_size = 3;
    config.train.accumulate_grad_batches = 4;
    config.data.group_by_length = true;
    HostDevice device;
    const auto loader = make_loader(config, dataset, device);
    Sampler::Settings s = settings(31, 3, 4);
    s.seed = 5;
    const Sampler sampler(s);
    const auto shapes = possible_text_shapes(config);
    int64_t shorter = 0;
    while (const HostBatch* batch = loader->next()) {
      std::vector<Sampler::Slot> slots = sampler.slots(batch->step);
      const ByteTokenizer tokenizer;
      const auto length = [&](const Sampler::Slot& slot) {
        return std::min<size_t>(tokenizer.encode(SmallDataset::text(slot.sample)).size(), 40);
      };
      std::stable_sort(slots.begin(), slots.end(),
                       [&](const auto& a, const auto& b) { return length(a) < length(b); });
      const TextShape text = batch->layout.text();
      CHECK(std::count(shapes.begin(), shapes.end(), text) == 1);
      CHECK(text.last >= static_cast<int64_t>(length(slots.back())));
      CHECK(text.rest >= static_cast<int64_t>(length(slots[8])));
      shorter += text.rest < text.last;
      check_batch(*batch, slots, *dataset, config);
      loader->give_back(batch);
    }
    CHECK(shorter > 0);
  }

  TEST_CASE("loader: every step holds what data.h says") {
    auto dataset = std::make_shared<SmallDataset>(31);
    for (const bool padding : {false, true})
      for (const char* text_padding : {"longest", "max"})
        for (const int64_t rank : {0, 1}) {
          Config config = small_config();
          config.train.loss_on_padding = padding;
          config.data.text_padding = text_padding;
          config.train.max_epochs = 3;
          CAPTURE(padding);
          CAPTURE(text_padding);
          HostDevice device;
          const auto loader = make_loader(config, dataset, device, rank, 2);
          Sampler::Settings s = settings(31, 3, 2, 2, rank);
          s.seed = 5;
          const Sampler sampler(s);
          CHECK(loader->steps_per_epoch() == 2);
          CHECK(loader->total_steps() == 6);
          const auto lengths = loader->text_lengths();
          for (int64_t step = 0; step < 6; ++step) {
            CAPTURE(step);
            const HostBatch* batch = loader->next();
            REQUIRE(batch);
            CHECK(batch->step == step);
            CHECK(batch->epoch == step / 2);
            CHECK(std::count(lengths.begin(), lengths.end(), batch->layout.text_tokens) == 1);
            check_batch(*batch, sampler.slots(step), *dataset, config);
            loader->give_back(batch);
          }
          CHECK(loader->next() == nullptr);
          CHECK(device.allocated == config.data.prefetch_steps);
        }
  }

  TEST_CASE("loader: T is the step's longest caption rounded up to 8") {
    auto dataset = std::make_shared<SmallDataset>(4);  // captions of 0, 7, 14, 21 letters and one special token
    Config config = small_config();
    config.train.batch_size = config.train.accumulate_grad_batches = 1;
    config.data.shuffle = false;
    HostDevice device;
    const auto loader = make_loader(config, dataset, device);
    for (const int64_t expected : {8, 8, 16, 20}) {
      const HostBatch* batch = loader->next();
      CHECK(batch->layout.text_tokens == expected);
      loader->give_back(batch);
    }
  }

  TEST_CASE("loader: epochs after the first read nothing") {
    auto dataset = std::make_shared<SmallDataset>(12);
    Config config = small_config();
    config.data.num_workers = 1;
    config.train.max_epochs = 4;
    HostDevice device;
    const auto loader = make_loader(config, dataset, device);
    while (const HostBatch* batch = loader->next()) loader->give_back(batch);
    CHECK(dataset->reads == 12);
  }

  TEST_CASE("loader: max_steps ends the run") {
    auto dataset = std::make_shared<SmallDataset>(12);
    Config config = small_config();
    config.train.max_epochs = 10;
    config.train.max_steps = 5;
    HostDevice device;
    auto loader = make_loader(config, dataset, device);
    CHECK(loader->total_steps() == 5);
    config.train.max_epochs = -1;
    CHECK(make_loader(config, dataset, device)->total_steps() == 5);
    config.train.max_steps = -1;
    CHECK_THROWS_AS(make_loader(config, dataset, device), UserError);
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
      }
    }
    CHECK(device.live == 0);
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

  TEST_CASE("picture cache: bounded, drops what was used longest ago") {
    PictureCache cache(100);
    const auto sample = [](int64_t bytes) {
      return std::make_shared<PreparedSample>(PreparedSample{std::vector<uint8_t>(bytes), {}});
    };
    for (int64_t i = 0; i < 3; ++i) cache.insert(i, sample(30));
    CHECK(cache.find(0));
    cache.insert(3, sample(30));
    CHECK(cache.find(0));
    CHECK_FALSE(cache.find(1));
    CHECK(cache.bytes() == 90);
    cache.insert(4, sample(101));
    CHECK_FALSE(cache.find(4));
    CHECK(cache.bytes() == 90);
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
    config.train.batch_size = 43;
    HostDevice device;
    for (const int64_t epochs : {1, 6}) {  // one epoch decodes each photo; five more only copy
      config.train.max_epochs = epochs;
      const auto start = std::chrono::steady_clock::now();
      const auto loader = make_data_loader(config, 0, 1, ImageProcessor{}, std::make_shared<ByteTokenizer>(),
                                           open_dataset(path, "auto"), device);
      int64_t samples = 0;
      while (const HostBatch* batch = loader->next()) {
        samples += config.train.batch_size;
        loader->give_back(batch);
      }
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      CHECK(samples == 86 * epochs);
      std::cout << "loader, 2 workers, " << epochs << " epochs of 86 photos: "
                << static_cast<double>(samples) / seconds << " samples/s\n";
    }
  }
}
