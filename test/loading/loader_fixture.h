// Fixtures of the loader's tests: host memory that is counted, pictures with captions, and a loader over them.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "blipft/error.h"
#include "blipft/config.h"
#include "blipft/loading.h"
#include "loading/text_shapes.h"
#include "support/byte_tokenizer.h"
#include "support/golden_files.h"

namespace blipft::testing {

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

inline const char* const pictures[] = {"baseline_420.jpg", "gray.jpg", "rgba.png", "palette.png"};

inline std::vector<uint8_t> read_bytes(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE_MESSAGE(in.good(), "cannot open " << file);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Sample i: picture i % 4 and a caption of (7 * i) % 23 letters.
class SmallDataset final : public Dataset {
 public:
  explicit SmallDataset(int64_t size) : size_(size) {
    for (const char* picture : pictures) pictures_.push_back(read_bytes(golden_path(concat("images/", picture))));
  }
  int64_t broken = -1;                        ///< this sample's picture is cut
  bool all_broken = false;
  std::chrono::milliseconds delay{0};
  mutable std::atomic<int64_t> reads{0};

  int64_t size() const override { return size_; }
  static std::string text(int64_t index) {
    return std::string(static_cast<size_t>(7 * index % 23), static_cast<char>('a' + index % 26));
  }
  Sample read(int64_t index) const override {
    ++reads;
    std::this_thread::sleep_for(delay);
    Sample sample{concat("sample ", index), {{text(index)}}, pictures_[index % 4]};
    if (index == broken || all_broken) sample.picture->resize(sample.picture->size() / 2);
    return sample;
  }

 private:
  int64_t size_;
  std::vector<std::vector<uint8_t>> pictures_;
};

inline Config small_config() {
  Config config;
  config.data.num_workers = 2;
  config.data.prefetch_steps = 2;
  config.data.max_text_tokens = 20;
  config.steps.batch_size = 3;
  config.steps.accumulate_grad_batches = 2;
  config.steps.seed = 5;
  return config;
}

inline ModelInputs small_pictures() { return {.picture_size = 12, .text = {.vocabulary = 256, .max_tokens = 100}}; }

template <class T>
const T* part(const HostBatch& batch, BatchPart which) {
  return batch.layout.whole(which, batch.block).as<T>();
}

inline std::unique_ptr<DataLoader> make_loader(const Config& config, const std::shared_ptr<SmallDataset>& dataset,
                                               Device& device, int64_t rank = 0, int64_t world = 1) {
  return make_data_loader(config, rank, world, small_pictures(), possible_text_shapes(config),
                          std::make_shared<ByteTokenizer>(), {dataset}, device);
}

}  // namespace blipft::testing
