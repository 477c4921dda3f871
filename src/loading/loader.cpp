// DataLoader: threads that read, decode, resize and tokenize ahead of the trainer, into page-locked memory.
//
// Each worker processes one sample at a time, in the order of steps, so that all workers help with the step that is
// needed next. The worker that finishes a step's last sample lays out the step. Steps are delivered in order. If a step
// fails, next() throws its error when the step is due.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "blipft/error.h"
#include "blipft/loading.h"
#include "blipft/pictures.h"
#include "loading/picture_reader.h"
#include "loading/sample_cache.h"
#include "loading/sample_text.h"
#include "loading/step_order.h"
#include "loading/text_shapes.h"
#include "loading/text_survey.h"
#include "ops/host_memory.h"
#include "pictures/image_resize.h"

namespace blipft {
namespace {

constexpr int64_t cache_bytes = int64_t{1} << 30;
constexpr int64_t max_looked_ahead = 256;    // maximum steps examined by first_text_shapes()
constexpr int64_t max_bad_in_a_row = 32;     // consecutive bad samples at which skipping ends with an error

/// A step that is being prepared, is ready, or is used by the trainer. The loader's mutex guards all members except the
/// memory of `block`.
struct StepWork {
  explicit StepWork(HostMemory&& memory) : block(std::move(memory)) {}
  HostMemory block;
  HostBatch batch;
  std::vector<Sampler::Slot> slots;           // [M * B]
  std::vector<BatchSample> samples;           // [M * B]
  std::vector<std::string> bad;               // [M * B], error of a skipped sample, else empty
  std::vector<std::shared_ptr<const PreparedSample>> prepared;  // [M * B], with the patches of pictures in texts
  int64_t started = 0, done = 0;                // samples started and finished
  bool ready = false, out = false;            // ready: laid out; out: used by the trainer
  int64_t failed_slot = std::numeric_limits<int64_t>::max();
  std::exception_ptr error;                   // error of the first failed slot
};

class PrefetchLoader final : public DataLoader {
 public:
  PrefetchLoader(const LoadingSettings& loading, const ModelInputs& inputs,
                 std::vector<TextShape> text_shapes, std::shared_ptr<const Tokenizer> tokenizer,
                 const SampleSet& samples, Device& device, std::unique_ptr<const StepOrder> order,
                 int64_t first_step, InstructionReader instructions)
      : loading_(loading), order_(std::move(order)), pictures_(samples.pictures),
        balances_(balances_micro_batches(loading) && !deals_to_ranks(loading, samples) && order_->micro_batches() > 1), text_shapes_(std::move(text_shapes)),
        layout_(inputs, order_->micro_batches(), loading.steps.batch_size, text_shapes_.back()),
        writer_(padding_id(*tokenizer, inputs.text.vocabulary), loading.steps.loss_on_padding),
        tokenizer_(std::move(tokenizer)), instructions_(std::move(instructions)),
        dataset_(samples.dataset), texts_(samples.texts && samples.texts->has_texts() ? samples.texts : nullptr),
        total_steps_(order_->total_steps()),
        samples_recur_(total_steps_ > order_->steps_per_epoch() || samples.epoch_samples > dataset_->size()),
        cache_(cache_bytes), first_step_(first_step), begun_(first_step), delivered_(first_step) {
    const int64_t steps = std::max<int64_t>(loading_.data.prefetch_steps, 1);
    works_.reserve(static_cast<size_t>(steps));
    for (int64_t i = 0; i < steps; ++i) works_.emplace_back(HostMemory(device, layout_.bytes()));
    for (StepWork& work : works_) free_.push_back(&work);
    for (int64_t i = 0; i < std::max<int64_t>(loading_.data.num_workers, 1); ++i)
      workers_.emplace_back([this](const std::stop_token& stop) {
        if (const std::exception_ptr error = attempt([&] { run_worker(stop); })) stop_all(error);
      });
  }

  ~PrefetchLoader() override {
    for (std::jthread& worker : workers_) worker.request_stop();  // stop all at once; ~workers_ joins them
  }

  const HostBatch* next() override {
    std::unique_lock lock(mutex_);
    if (delivered_ == total_steps_) return nullptr;
    BLIPFT_CHECK(!pipeline_.empty() || !free_.empty(), "all ", works_.size(),
                 " prepared steps are out; give one back before asking for another");
    const auto start = std::chrono::steady_clock::now();
    step_ready_.wait(lock, [this] { return worker_error_ || (!pipeline_.empty() && is_final(*pipeline_.front())); });
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

  int64_t steps_per_epoch() const override { return order_->steps_per_epoch(); }
  int64_t total_steps() const override { return total_steps_; }
  double wait_seconds() const override {
    std::lock_guard lock(mutex_);
    return wait_seconds_;
  }
  std::vector<TextShape> first_text_shapes(int64_t max_samples) const override {
    std::vector<TextShape> shapes;
    std::map<int64_t, TokenizedAnswers> known;  // {sample: texts}
    for (int64_t step = first_step_; step < std::min(total_steps_, first_step_ + max_looked_ahead); ++step) {
      std::vector<BatchSample> samples;
      for (const Sampler::Slot& slot : order_->slots(step)) {
        if (slot.sample < 0) {
          samples.push_back({{}, slot.key, true});
          continue;
        }
        auto found = known.find(slot.sample);
        if (found == known.end()) {
          if (static_cast<int64_t>(known.size()) == max_samples) return shapes;
          try {
            found = known.emplace(slot.sample, text_of(slot.sample)).first;
          } catch (const Error&) {
            return shapes;                      // next() reports the error when this step is due
          }
        }
        samples.push_back({found->second.drawn(static_cast<uint64_t>(loading_.steps.seed), slot.pass), slot.key});
      }
      if (balances_) samples = reordered(samples, balanced_order_of(samples));
      shapes.push_back(smallest_shape(text_shapes_, samples, layout_.batch_size(), layout_.inputs().patches));
    }
    return shapes;
  }

 private:
  bool has_work() const {
    if (failed_) return false;
    if (!pipeline_.empty() && pipeline_.back()->started < layout_.samples()) return true;
    return begun_ < total_steps_ && !free_.empty();
  }

  /// Returns true if the step is ready for the trainer, or if it has failed and no worker processes it any more (so
  /// that the first failed slot is known).
  static bool is_final(const StepWork& work) { return work.ready || (work.error && work.done == work.started); }

  /// Appends the next step to the pipeline.
  void begin_step() {
    std::vector<Sampler::Slot> slots = order_->slots(begun_);
    StepWork& work = *free_.back();
    work.slots = std::move(slots);
    work.samples.assign(work.slots.size(), {});
    work.bad.assign(work.slots.size(), {});
    work.prepared.assign(work.slots.size(), nullptr);
    work.started = work.done = 0;
    work.ready = false;
    work.batch = {};
    work.batch.step = begun_;
    work.batch.epoch = begun_ / order_->steps_per_epoch();
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
      if (pipeline_.empty() || pipeline_.back()->started == layout_.samples()) {
        begin_step();
        work_waits_.notify_all();
      }
      StepWork& work = *pipeline_.back();
      const int64_t slot = work.started++;
      lock.unlock();
      std::exception_ptr error = attempt([&] { prepare(work, slot); });
      lock.lock();
      note_failure(work, slot, error);
      if (work.done + 1 == layout_.samples() && !work.error) {  // the last sample: no other thread uses this step now
        lock.unlock();
        error = attempt([&] { lay_out(work); });
        lock.lock();
        note_failure(work, slot, error);
        work.ready = !error;
      }
      ++work.done;
      if (is_final(work)) step_ready_.notify_all();
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

  /// Ends the loader after an error outside of a sample, such as a failed allocation for a step's list of samples.
  void stop_all(const std::exception_ptr& error) {
    std::lock_guard lock(mutex_);
    worker_error_ = error;
    failed_ = true;
    step_ready_.notify_all();
  }

  /// Writes one sample's pixels into the block and its text into work.samples.
  void prepare(StepWork& work, int64_t slot) {
    BatchSample& sample = work.samples[slot];
    uint8_t* pixels = BatchWriter::pixels(layout_, work.block.get(), slot);
    sample.key = work.slots[slot].key;
    sample.absent = work.slots[slot].sample < 0;
    if (!sample.absent) {
      try {
        if (pictures_) work.prepared[slot] = read_with_pictures(work.slots[slot], sample.text);
        else read(work.slots[slot], pixels, sample.text);
        bad_in_a_row_ = 0;
      } catch (const UserError& error) {
        BLIPFT_USER_CHECK(loading_.data.on_bad_sample == FaultAction::skip, error.what(), "; data.on_bad_sample=skip leaves such samples out");
        BLIPFT_USER_CHECK(++bad_in_a_row_ < max_bad_in_a_row, error.what(), "; ", max_bad_in_a_row,
                          " samples in a row could not be read (data.on_bad_sample: skip); is ", loading_.data.path,
                          " still there?");
        work.bad[slot] = error.what();
        sample.text = {};
        sample.absent = true;
      }
    }
    if (sample.absent && pixels) std::fill_n(pixels, pixel_bytes(), uint8_t{0});
  }

  void read(const Sampler::Slot& slot, uint8_t* pixels, TokenizedText& text) {
    const int64_t sample = slot.sample;
    if (!pixels && texts_) {
      text = texts_->text(sample).drawn(static_cast<uint64_t>(loading_.steps.seed), slot.pass);
      return;
    }
    if (const auto known = samples_recur_ ? cache_.find(sample) : nullptr) {
      std::copy(known->pixels.begin(), known->pixels.end(), pixels);
      text = known->text.drawn(static_cast<uint64_t>(loading_.steps.seed), slot.pass);
      return;
    }
    const Dataset::Sample source = dataset_->read(sample);
    if (pixels) decode(source, pixels);
    TokenizedAnswers texts = tokenized(source);
    text = texts.drawn(static_cast<uint64_t>(loading_.steps.seed), slot.pass);
    if (samples_recur_)
      cache_.insert(sample, std::make_shared<PreparedSample>(
                                PreparedSample{{pixels, pixels + (pixels ? pixel_bytes() : 0)}, std::move(texts)}));
  }

  /// Reads a sample with pictures in its text. Returns the memory of their patches.
  std::shared_ptr<const PreparedSample> read_with_pictures(const Sampler::Slot& slot, TokenizedText& text) {
    std::shared_ptr<const PreparedSample> prepared = samples_recur_ ? cache_.find(slot.sample) : nullptr;
    if (!prepared) {
      const Dataset::Sample source = dataset_->read(slot.sample);
      PreparedSample made{{}, texts_ ? texts_->text(slot.sample) : tokenized(source)};
      made.pixels = pictures_->read(source.pictures, made.text.with_max_pictures().pictures);
      prepared = std::make_shared<const PreparedSample>(std::move(made));
      if (samples_recur_) cache_.insert(slot.sample, prepared);
    }
    text = prepared->text.drawn(static_cast<uint64_t>(loading_.steps.seed), slot.pass);
    pictures_->set_patches(text.pictures, prepared->pixels.data());
    return prepared;
  }

  TokenizedAnswers text_of(int64_t sample) const {
    return texts_ ? texts_->text(sample) : tokenized(dataset_->read(sample));
  }

  TokenizedAnswers tokenized(const Dataset::Sample& source) const {
    return tokenize_answers(source, *tokenizer_, loading_.data.max_text_tokens, layout_.inputs().text.vocabulary, instructions_,
                            layout_.inputs().decoder_start, pictures_.get());
  }

  int64_t pixel_bytes() const {
    const int64_t size = layout_.inputs().picture_size;
    return size * size * 3;
  }

  void decode(const Dataset::Sample& source, uint8_t* pixels) const {
    BLIPFT_USER_CHECK(source.picture, source.name, ": found no picture, the model reads one with each text; check "
                      "data.path and model.path");
    const Image picture = decode_image(source.picture->data(), source.picture->size(), source.name,
                                       picture_decoding(loading_));
    resize_picture_into(picture, layout_.inputs().picture_size, layout_.inputs().picture_size, {}, pixels);
  }

  /// Writes everything except pixels. The shape of the step depends on the texts of all its samples.
  void lay_out(StepWork& work) const {
    HostBatch& batch = work.batch;
    if (balances_) balance(work);
    batch.layout = BatchLayout(layout_.inputs(), layout_.micro_batches(), layout_.batch_size(),
                               smallest_shape(text_shapes_, work.samples, layout_.batch_size(), layout_.inputs().patches));
    writer_.write(batch.layout, work.samples, batch.block);
    work.prepared.clear();
    for (const BatchSample& sample : work.samples) {
      batch.text_tokens_used += sample.text.rows();
      batch.texts_without_target += !sample.absent && !sample.text.has_target();
      batch.texts_cut += sample.text.cut;
    }
    for (const std::string& bad : work.bad)
      if (!bad.empty()) batch.bad_samples.push_back(bad);
  }

  /// Reorders samples so that all micro-batches have about the same number of tokens.
  void balance(StepWork& work) const {
    const std::vector<size_t> order = balanced_order_of(work.samples);
    BatchWriter::reorder_pixels(layout_, work.batch.block, order);
    work.samples = reordered(work.samples, order);
  }
  std::vector<size_t> balanced_order_of(const std::vector<BatchSample>& samples) const {
    std::vector<int64_t> lengths;
    for (const BatchSample& sample : samples) lengths.push_back(sample.text.rows());
    return balanced_order(lengths, layout_.micro_batches());
  }
  static std::vector<BatchSample> reordered(std::vector<BatchSample>& samples, const std::vector<size_t>& order) {
    std::vector<BatchSample> result;
    for (const size_t i : order) result.push_back(std::move(samples[i]));
    return result;
  }

  const LoadingSettings loading_;
  const std::unique_ptr<const StepOrder> order_;
  const std::shared_ptr<const PictureReader> pictures_;  // null: the model reads no pictures in texts
  const bool balances_;                       // true: micro-batches get samples of about equal total length
  const std::vector<TextShape> text_shapes_;
  const BatchLayout layout_;                  // layout for the largest text shape
  const BatchWriter writer_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const InstructionReader instructions_;
  const std::shared_ptr<const Dataset> dataset_;
  const std::shared_ptr<const TextSurvey> texts_;  // null: texts are tokenized when their step is prepared
  const int64_t total_steps_;
  const bool samples_recur_;                  // false: no sample occurs twice, so nothing is cached
  SampleCache cache_;
  std::atomic<int64_t> bad_in_a_row_{0};

  mutable std::mutex mutex_;
  std::condition_variable_any work_waits_;    // wakes the workers
  std::condition_variable step_ready_;        // wakes the trainer
  std::vector<StepWork> works_;
  std::vector<StepWork*> free_;
  std::deque<StepWork*> pipeline_;            // started steps in order; the front is delivered next
  const int64_t first_step_;
  int64_t begun_, delivered_;                 // numbers of steps, including those before first_step_
  bool failed_ = false;                       // true: no further step is started
  std::exception_ptr worker_error_;
  double wait_seconds_ = 0;
  std::vector<std::jthread> workers_;         // last member: the threads end before the members that they use
};

}  // namespace

std::unique_ptr<DataLoader> make_data_loader(const LoadingSettings& loading, int64_t rank, int64_t world,
                                             const ModelInputs& inputs, std::vector<TextShape> text_shapes,
                                             std::shared_ptr<const Tokenizer> tokenizer, const SampleSet& samples,
                                             Device& device, int64_t first_step, InstructionReader instructions) {
  BLIPFT_CHECK(tokenizer && samples.dataset, "a data loader needs a tokenizer and a dataset");
  BLIPFT_CHECK(!inputs.instruction == !instructions.tokenizer, "the model reads instructions, or does not");
  BLIPFT_CHECK(!inputs.text.pictures == !samples.pictures, "the model reads pictures in texts, or does not");
  BLIPFT_CHECK(!text_shapes.empty(), "a data loader needs the text shapes that steps may have");
  return std::make_unique<PrefetchLoader>(
      loading, inputs, std::move(text_shapes), std::move(tokenizer), samples, device,
      deals_to_ranks(loading, samples)
          ? make_dealt_order(loading, rank, world, samples.texts->work(), samples.epoch_samples)
          : make_training_order(loading, rank, world, samples.dataset->size(), samples.epoch_samples),
      first_step,
      std::move(instructions));
}

std::unique_ptr<DataLoader> make_validation_loader(const LoadingSettings& loading, int64_t rank, int64_t world,
                                                   const ModelInputs& inputs, std::vector<TextShape> text_shapes,
                                                   std::shared_ptr<const Tokenizer> tokenizer,
                                                   const SampleSet& samples, Device& device,
                                                   InstructionReader instructions) {
  BLIPFT_CHECK(tokenizer && samples.dataset, "a data loader needs a tokenizer and a dataset");
  BLIPFT_CHECK(!inputs.instruction == !instructions.tokenizer, "the model reads instructions, or does not");
  return std::make_unique<PrefetchLoader>(loading, inputs, std::move(text_shapes), std::move(tokenizer), samples,
                                          device,
                                          make_validation_order(loading, rank, world, samples.dataset->size()), 0,
                                          std::move(instructions));
}

}  // namespace blipft
