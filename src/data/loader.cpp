// DataLoader: threads that read, decode, resize and tokenize ahead of the trainer, into page-locked memory.
//
// Work is handed out one sample at a time in the order of steps, so all workers help the step that is needed next. The
// worker that finishes a step's last sample lays out its text. Steps come out in order; a step's failure comes out
// where the step would have.
#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include "blipft/data.h"
#include "blipft/error.h"
#include "data/image_resize.h"
#include "data/picture_cache.h"
#include "ops/quietly.h"

namespace blipft {
namespace {

constexpr int64_t cache_bytes = int64_t{1} << 30;
constexpr int64_t length_multiple = 8;

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// A step needs one token to see and one to predict.
int64_t longest_text(const DataSection& data) { return std::max<int64_t>(data.max_text_tokens, 2); }

/// Text rows that a sample takes at least.
int64_t rows_of(const std::vector<int32_t>& text) { return std::max<int64_t>(static_cast<int64_t>(text.size()), 1); }

/// Whether texts are packed: asked for, or left to us and the loss is a sum over real tokens, whoever shares a
/// micro-batch.
bool packs_text(const Config& config) {
  if (config.data.text_padding == "packed") return true;
  return config.data.text_padding == "auto" && config.train.loss_normalization == "tokens" &&
         !config.train.loss_on_padding;
}

/// Device::allocate_host memory. Move-only.
class HostBlock {
 public:
  HostBlock(Device& device, int64_t bytes) : device_(&device), memory_(device.allocate_host(bytes)) {}
  ~HostBlock() {
    if (memory_) quietly([&] { device_->free_host(memory_); });
  }
  HostBlock(HostBlock&& other) noexcept : device_(other.device_), memory_(std::exchange(other.memory_, nullptr)) {}
  HostBlock& operator=(HostBlock&&) = delete;
  void* get() const { return memory_; }

 private:
  Device* device_;
  void* memory_;
};

/// A step being prepared, waiting, or with the trainer. All but `batch`'s memory is guarded by the loader's mutex.
struct StepWork {
  explicit StepWork(HostBlock&& memory) : block(std::move(memory)) {}
  HostBlock block;
  HostBatch batch;
  std::vector<Sampler::Slot> slots;           // [M * B]
  std::vector<std::vector<int32_t>> ids;      // [M * B], truncated
  int64_t taken = 0, done = 0;                // samples begun and ended
  bool ready = false, out = false;            // laid out; with the trainer
  int64_t failed_slot = std::numeric_limits<int64_t>::max();
  std::exception_ptr error;                   // of the first failed slot
};

template <class T>
T* part(const HostBatch& batch, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(batch.block) + offset);
}

Sampler::Settings sampler_settings(const Config& config, int64_t rank, int64_t world, int64_t dataset_size) {
  Sampler::Settings settings;
  settings.dataset_size = dataset_size;
  settings.num_train_samples = config.data.num_train_samples;
  settings.batch_size = config.train.batch_size;
  settings.micro_batches = config.train.accumulate_grad_batches;
  settings.world = world;
  settings.rank = rank;
  settings.seed = static_cast<uint64_t>(config.train.seed);
  settings.shuffle = config.data.shuffle;
  settings.limit_train_batches = config.train.limit_train_batches;
  return settings;
}

int64_t count_steps(const TrainSection& train, int64_t steps_per_epoch) {
  int64_t steps = train.max_epochs > 0 ? train.max_epochs * steps_per_epoch : std::numeric_limits<int64_t>::max();
  if (train.max_steps >= 0) steps = std::min(steps, train.max_steps);
  BLIPFT_USER_CHECK(steps < std::numeric_limits<int64_t>::max(), "neither train.max_epochs (", train.max_epochs,
                    ") nor train.max_steps (",
                    train.max_steps, ") says when to stop; set one of them");
  return steps;
}

class PrefetchLoader final : public DataLoader {
 public:
  PrefetchLoader(const Config& config, int64_t rank, int64_t world, const ImageProcessor& processor,
                 std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const Dataset> dataset, Device& device)
      : data_(config.data), loss_on_padding_(config.train.loss_on_padding),
        text_shapes_(possible_text_shapes(config)), image_size_(processor.image_size),
        tokenizer_(std::move(tokenizer)), dataset_(std::move(dataset)),
        sampler_(sampler_settings(config, rank, world, dataset_->size())),
        total_steps_(count_steps(config.train, sampler_.steps_per_epoch())),
        samples_recur_(total_steps_ > sampler_.steps_per_epoch() || data_.num_train_samples > dataset_->size()),
        layout_{config.train.accumulate_grad_batches, config.train.batch_size, text_shapes_.back(), image_size_},
        cache_(cache_bytes) {
    const int64_t steps = std::max<int64_t>(data_.prefetch_steps, 1);
    works_.reserve(static_cast<size_t>(steps));
    for (int64_t i = 0; i < steps; ++i) works_.emplace_back(HostBlock(device, layout_.bytes()));
    for (StepWork& work : works_) free_.push_back(&work);
    for (int64_t i = 0; i < std::max<int64_t>(data_.num_workers, 1); ++i)
      workers_.emplace_back([this](const std::stop_token& stop) {
        if (const std::exception_ptr error = attempt([&] { run_worker(stop); })) stop_all(error);
      });
  }

  ~PrefetchLoader() override {
    for (std::jthread& worker : workers_) worker.request_stop();  // all at once; each is joined as workers_ ends
  }

  const HostBatch* next() override {
    std::unique_lock lock(mutex_);
    if (delivered_ == total_steps_) return nullptr;
    BLIPFT_CHECK(!pipeline_.empty() || !free_.empty(), "all ", works_.size(),
                 " prepared steps are out; give one back before asking for another");
    const auto start = std::chrono::steady_clock::now();
    step_ready_.wait(lock, [this] { return worker_error_ || (!pipeline_.empty() && is_settled(*pipeline_.front())); });
    wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (worker_error_) std::rethrow_exception(worker_error_);
    StepWork& work = *pipeline_.front();
    if (work.error) std::rethrow_exception(work.error);
    pipeline_.pop_front();
    work.out = true;
    ++delivered_;
    return &work.batch;
  }

  void give_back(const HostBatch* batch) override {
    std::lock_guard lock(mutex_);
    const auto is_it = [&](const StepWork& candidate) { return &candidate.batch == batch && candidate.out; };
    const auto work = std::find_if(works_.begin(), works_.end(), is_it);
    BLIPFT_CHECK(work != works_.end(), "a batch was given back that is not out");
    work->out = false;
    free_.push_back(&*work);
    work_waits_.notify_all();
  }

  int64_t steps_per_epoch() const override { return sampler_.steps_per_epoch(); }
  int64_t total_steps() const override { return total_steps_; }
  double wait_seconds() const override {
    std::lock_guard lock(mutex_);
    return wait_seconds_;
  }

 private:
  int64_t step_samples() const { return layout_.micro_batches * layout_.batch_size; }

  bool has_work() const {
    if (failed_) return false;
    if (!pipeline_.empty() && pipeline_.back()->taken < step_samples()) return true;
    return begun_ < total_steps_ && !free_.empty();
  }

  /// Ready for the trainer, or failed with nobody working on it any more (so that the first failed slot is known).
  static bool is_settled(const StepWork& work) { return work.ready || (work.error && work.done == work.taken); }

  /// Puts the next step at the end of the pipeline.
  void begin_step() {
    std::vector<Sampler::Slot> slots = sampler_.slots(begun_);
    StepWork& work = *free_.back();
    work.slots = std::move(slots);
    work.ids.assign(work.slots.size(), {});
    work.taken = work.done = 0;
    work.ready = false;
    work.batch = {};
    work.batch.step = begun_;
    work.batch.epoch = sampler_.epoch_of(begun_);
    work.batch.layout = layout_;
    work.batch.block = work.block.get();
    free_.pop_back();
    pipeline_.push_back(&work);
    ++begun_;
  }

  void run_worker(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (work_waits_.wait(lock, stop, [this] { return has_work(); })) {
      if (stop.stop_requested()) return;
      if (pipeline_.empty() || pipeline_.back()->taken == step_samples()) {
        begin_step();
        work_waits_.notify_all();
      }
      StepWork& work = *pipeline_.back();
      const int64_t slot = work.taken++;
      lock.unlock();
      std::exception_ptr error = attempt([&] { prepare(work, slot); });
      lock.lock();
      note_failure(work, slot, error);
      if (work.done + 1 == step_samples() && !work.error) {  // the last one, and nobody else touches this step now
        lock.unlock();
        error = attempt([&] { lay_out_text(work); });
        lock.lock();
        note_failure(work, slot, error);
        work.ready = !error;
      }
      ++work.done;
      if (is_settled(work)) step_ready_.notify_all();
    }
  }

  template <class Body>
  static std::exception_ptr attempt(const Body& body) {
    try {
      body();
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  void note_failure(StepWork& work, int64_t slot, const std::exception_ptr& error) {
    if (!error || slot > work.failed_slot) return;
    work.failed_slot = slot;
    work.error = error;
    failed_ = true;
  }

  /// For what goes wrong outside of a sample, such as memory for a step's list of samples.
  void stop_all(const std::exception_ptr& error) {
    std::lock_guard lock(mutex_);
    worker_error_ = error;
    failed_ = true;
    step_ready_.notify_all();
  }

  /// One sample's pixels into the block, its ids into work.ids.
  void prepare(StepWork& work, int64_t slot) {
    const int64_t sample = work.slots[slot].sample;
    const int64_t bytes = image_size_ * image_size_ * 3;
    uint8_t* pixels = part<uint8_t>(work.batch, layout_.pixels_offset()) + slot * bytes;
    if (const auto known = samples_recur_ ? cache_.find(sample) : nullptr) {
      std::memcpy(pixels, known->pixels.data(), static_cast<size_t>(bytes));
      work.ids[slot] = known->ids;
      return;
    }
    const Dataset::Sample source = dataset_->read(sample);
    const Image picture = decode_image(source.picture.data(), source.picture.size(), source.name,
                                       {data_.exif_orientation, data_.transparency == "white"});
    resize_bicubic_into(picture, image_size_, image_size_, pixels);
    std::vector<int32_t> ids = tokenizer_->encode(source.text);
    // The special token comes first, so a plain cut is what the Hugging Face tokenizer's truncation does.
    const size_t limit = static_cast<size_t>(data_.max_text_tokens);
    if (ids.size() > limit) ids.resize(limit);
    if (samples_recur_)
      cache_.insert(sample, std::make_shared<PreparedSample>(PreparedSample{{pixels, pixels + bytes}, ids}));
    work.ids[slot] = std::move(ids);
  }

  /// Everything but pixels; needs the ids of the whole step, because its shape depends on them.
  void lay_out_text(StepWork& work) const {
    HostBatch& batch = work.batch;
    BatchLayout& layout = batch.layout;
    if (layout_.text.packed() && layout.micro_batches > 1) deal_evenly(work);
    layout.text = *std::find_if(text_shapes_.begin(), text_shapes_.end() - 1,
                                [&](const TextShape& shape) { return holds(shape, work); });
    for (int64_t m = 0; m < layout.micro_batches; ++m) {
      lay_out_rows(work, m);
      lay_out_micro_batch(work, m);
    }
    for (const auto& ids : work.ids) {
      batch.text_tokens_used += static_cast<int64_t>(ids.size());
      batch.texts_without_target += ids.size() < 2;  // the first is given
    }
  }

  /// The texts of micro-batch m.
  std::span<const std::vector<int32_t>> texts(const StepWork& work, int64_t m) const {
    return std::span(work.ids).subspan(static_cast<size_t>(m * layout_.batch_size),
                                       static_cast<size_t>(layout_.batch_size));
  }

  bool holds(const TextShape& shape, const StepWork& work) const {
    if (!shape.packed())
      return std::all_of(work.ids.begin(), work.ids.end(),
                         [&](const auto& text) { return static_cast<int64_t>(text.size()) <= shape.tokens; });
    for (int64_t m = 0; m < layout_.micro_batches; ++m)
      if (rows_of_all(texts(work, m)) > shape.packed_rows) return false;
    return true;
  }

  static int64_t rows_of_all(std::span<const std::vector<int32_t>> texts) {
    return std::accumulate(texts.begin(), texts.end(), int64_t{0},
                           [](int64_t sum, const auto& text) { return sum + rows_of(text); });
  }

  /// Gives each micro-batch about as many tokens: by length, longest first, the samples are dealt to and fro.
  void deal_evenly(StepWork& work) const {
    const size_t count = work.ids.size(), hands = static_cast<size_t>(layout_.micro_batches);
    std::vector<size_t> longest_first(count), order(count);
    std::iota(longest_first.begin(), longest_first.end(), size_t{0});
    std::stable_sort(longest_first.begin(), longest_first.end(),
                     [&](size_t a, size_t b) { return work.ids[a].size() > work.ids[b].size(); });
    for (size_t i = 0; i < count; ++i) {
      const size_t round = i / hands, hand = round % 2 == 0 ? i % hands : hands - 1 - i % hands;
      order[hand * (count / hands) + round] = longest_first[i];
    }
    reorder(work, order);
  }

  /// Sample i becomes what order[i] was.
  void reorder(StepWork& work, const std::vector<size_t>& order) const {
    const size_t count = order.size(), bytes = static_cast<size_t>(image_size_ * image_size_ * 3);
    uint8_t* pixels = part<uint8_t>(work.batch, layout_.pixels_offset());
    const std::vector<uint8_t> old_pixels(pixels, pixels + count * bytes);
    const std::vector<Sampler::Slot> old_slots = work.slots;
    std::vector<std::vector<int32_t>> old_ids = std::move(work.ids);
    work.ids.resize(count);
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(pixels + i * bytes, old_pixels.data() + order[i] * bytes, bytes);
      work.slots[i] = old_slots[order[i]];
      work.ids[i] = std::move(old_ids[order[i]]);
    }
  }

  /// How many text rows each sample of micro-batch m has. What the shape has more than the texts need goes to the first
  /// samples as padding.
  void lay_out_rows(const StepWork& work, int64_t m) const {
    const BatchLayout& layout = work.batch.layout;
    int32_t* rows = part<int32_t>(work.batch, layout.rows_offset()) + m * layout.batch_size;
    int64_t padding = layout.text.rows(layout.batch_size) - rows_of_all(texts(work, m));
    for (const std::vector<int32_t>& text : texts(work, m)) {
      const int64_t own = rows_of(text), more = std::min(padding, layout.text.tokens - own);
      *rows++ = static_cast<int32_t>(own + more);
      padding -= more;
    }
  }

  void lay_out_micro_batch(const StepWork& work, int64_t m) const {
    const HostBatch& batch = work.batch;
    const BatchLayout& layout = batch.layout;
    const int64_t first = m * layout.batch_size, tokens = layout.text.tokens;
    int32_t* labels = part<int32_t>(batch, layout.labels_offset()) + m * layout.labels();
    int64_t learnt_padding = 0;  // up to here padding is a target
    for (const auto& text : texts(work, m))
      if (loss_on_padding_) learnt_padding = std::max(learnt_padding, static_cast<int64_t>(text.size()));
    int64_t count = 0;
    for (int64_t i = first; i < first + layout.batch_size; ++i) {
      const std::vector<int32_t>& caption = work.ids[i];
      const int64_t length = static_cast<int64_t>(caption.size());
      int32_t* ids = part<int32_t>(batch, layout.ids_offset()) + i * tokens;
      std::copy(caption.begin(), caption.end(), ids);
      std::fill(ids + length, ids + tokens, tokenizer_->pad_id());
      const int64_t predicting = part<int32_t>(batch, layout.rows_offset())[i] - 1;
      const int64_t targets = std::max<int64_t>(std::max(length, learnt_padding) - 1, 0);
      std::copy(ids + 1, ids + 1 + targets, labels);
      std::fill(labels + targets, labels + predicting, -100);
      labels += predicting;
      part<int32_t>(batch, layout.lengths_offset())[i] = static_cast<int32_t>(length);
      part<int64_t>(batch, layout.keys_offset())[i] = work.slots[i].key;
      count += targets;
    }
    part<float>(batch, layout.counts_offset())[m] = static_cast<float>(count);
  }

  const DataSection data_;
  const bool loss_on_padding_;
  const std::vector<TextShape> text_shapes_;
  const int64_t image_size_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::shared_ptr<const Dataset> dataset_;
  const Sampler sampler_;
  const int64_t total_steps_;
  const bool samples_recur_;                  // in one epoch no sample comes twice: nothing to keep
  const BatchLayout layout_;                  // with the largest text shape
  PictureCache cache_;

  mutable std::mutex mutex_;
  std::condition_variable_any work_waits_;    // for workers
  std::condition_variable step_ready_;        // for the trainer
  std::vector<StepWork> works_;
  std::vector<StepWork*> free_;
  std::deque<StepWork*> pipeline_;            // begun steps in order; the front is the next to come out
  int64_t begun_ = 0, delivered_ = 0;
  bool failed_ = false;                       // nothing more is begun
  std::exception_ptr worker_error_;
  double wait_seconds_ = 0;
  std::vector<std::jthread> workers_;         // last: they end before anything they use
};

}  // namespace

std::vector<TextShape> possible_text_shapes(const Config& config) {
  const int64_t longest = longest_text(config.data), batch = config.train.batch_size;
  std::vector<TextShape> shapes;
  if (packs_text(config)) {
    // Each shape is a program of its own: at most 32 of them.
    const int64_t most = batch * longest;
    const auto part = std::bit_ceil(static_cast<uint64_t>((most + 31) / 32));
    const int64_t multiple = std::max<int64_t>(8, static_cast<int64_t>(part));
    for (int64_t rows = round_up(batch + 1, multiple); rows < most; rows += multiple) shapes.push_back({longest, rows});
    shapes.push_back({longest, most});
    return shapes;
  }
  if (config.data.text_padding != "max")
    for (int64_t length = length_multiple; length < longest; length += length_multiple) shapes.push_back({length, 0});
  shapes.push_back({longest, 0});
  return shapes;
}

std::unique_ptr<DataLoader> make_data_loader(const Config& config, int64_t rank, int64_t world,
                                             const ImageProcessor& processor,
                                             std::shared_ptr<const Tokenizer> tokenizer,
                                             std::shared_ptr<const Dataset> dataset, Device& device) {
  BLIPFT_CHECK(tokenizer && dataset, "a data loader needs a tokenizer and a dataset");
  return std::make_unique<PrefetchLoader>(config, rank, world, processor, std::move(tokenizer), std::move(dataset),
                                          device);
}

}  // namespace blipft
