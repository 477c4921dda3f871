// Sampler: the seeded order of samples, shared by all ranks.
//
// Each epoch has its own permutation, a Fisher-Yates shuffle with Philox numbers of (seed, epoch, draw). It is kept
// until slots() needs another epoch. Workers are at most prefetch_steps ahead, so it is computed about once per epoch.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "blipft/error.h"
#include "blipft/loading.h"
#include "blipft/philox.h"
#include "loading/random_order.h"

namespace blipft {

/// The permutation of the epoch used last. Copies of a Sampler share it.
struct Sampler::EpochOrder {
  std::mutex mutex;
  int64_t epoch = -1;
  std::vector<int64_t> order;  // [samples]
};

namespace {

// Limit of an epoch: its order is kept in memory with 8 bytes per sample.
constexpr int64_t max_samples = 4'000'000'000;

/// Returns a number below `bound` from two random words: the high half of a 128-bit product.
int64_t below(uint32_t high, uint32_t low, int64_t bound) {
  const auto word = static_cast<unsigned __int128>(static_cast<uint64_t>(high) << 32 | low);
  return static_cast<int64_t>(word * static_cast<uint64_t>(bound) >> 64);
}

}  // namespace

void shuffle(std::vector<int64_t>& order, uint64_t seed, RandomOrder purpose, int64_t epoch) {
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = static_cast<int64_t>(order.size()) - 1; i > 0; --i) {
    const Philox4 words = philox({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32),
                                  static_cast<uint32_t>(epoch), static_cast<uint32_t>(purpose)},
                                 static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    std::swap(order[i], order[below(words.x, words.y, i + 1)]);
  }
}

Sampler::Sampler(const Settings& settings) : settings_(settings), order_(std::make_shared<EpochOrder>()) {
  BLIPFT_USER_CHECK(settings.dataset_size > 0, "the dataset has no samples");
  BLIPFT_CHECK(settings.batch_size > 0 && settings.micro_batches > 0 && settings.world > 0 && settings.rank >= 0 &&
                   settings.rank < settings.world,
               "batch_size ", settings.batch_size, ", micro_batches ", settings.micro_batches, ", rank ",
               settings.rank, " of ", settings.world);
  samples_ = settings.num_train_samples > 0 ? settings.num_train_samples : settings.dataset_size;
  BLIPFT_USER_CHECK(samples_ <= max_samples, "an epoch of ", samples_,
                    " samples (data.num_train_samples), expected at ",
                    "most ", max_samples, "; lower it, and raise train.max_epochs");
  int64_t global_batch = 0;
  BLIPFT_USER_CHECK(!__builtin_mul_overflow(settings.batch_size, settings.micro_batches, &global_batch) &&
                        !__builtin_mul_overflow(global_batch, settings.world, &global_batch),
                    "a step of train.batch_size ", settings.batch_size, " x train.accumulate_grad_batches ",
                    settings.micro_batches, " x ", settings.world, " ranks has more samples than can be counted; ",
                    "lower these");
  const int64_t requested = settings.step_samples, micro_batches = settings.micro_batches * settings.world;
  BLIPFT_CHECK(requested >= 0 && (requested + micro_batches - 1) / micro_batches <= settings.batch_size, requested,
               " samples do not fit into ", micro_batches, " micro-batches of ", settings.batch_size);
  step_samples_ = requested > 0 ? requested : global_batch;
  const int64_t all = samples_ / step_samples_;
  BLIPFT_USER_CHECK(all > 0, settings.location, settings.location.empty() ? "" : ": ", "an epoch has ",
                    counted(samples_, "sample"), settings.origin, ", but one step takes ", step_samples_, " (train.batch_size ",
                    settings.batch_size, " x train.accumulate_grad_batches ", settings.micro_batches, " x ",
                    counted(settings.world, "rank"), "); lower ", settings.lower.empty() ? "these" : settings.lower,
                    ", or repeat samples with data.num_train_samples: ", step_samples_);
  const double limit = settings.limit_train_batches;
  BLIPFT_USER_CHECK(limit > 0, "train.limit_train_batches is ", limit, ", expected a positive number");
  steps_ = limit <= 1 ? static_cast<int64_t>(std::floor(static_cast<double>(all) * limit))
                      : std::min(all, static_cast<int64_t>(std::min(limit, 1e15)));
  BLIPFT_USER_CHECK(steps_ > 0, "train.limit_train_batches ", limit, " of the ", all,
                    " steps of an epoch leaves no step; raise it (above 1 it counts steps)");
}

int64_t Sampler::steps_per_epoch() const { return steps_; }

int64_t Sampler::samples_per_epoch() const { return steps_ * step_samples_; }

std::vector<Sampler::Slot> Sampler::slots(int64_t step) const {
  BLIPFT_CHECK(step >= 0, "step ", step);
  const Settings& s = settings_;
  const int64_t epoch = epoch_of(step);
  const int64_t begin = (step - epoch * steps_) * step_samples_;  // first sample of this step, in the epoch's order
  const int64_t micro_batches = s.micro_batches * s.world, each = step_samples_ / micro_batches;
  const int64_t larger = step_samples_ % micro_batches;           // number of micro-batches with one sample more

  std::lock_guard lock(order_->mutex);
  if (s.shuffle && order_->epoch != epoch) {
    order_->order.resize(static_cast<size_t>(samples_));
    shuffle(order_->order, s.seed, RandomOrder::epoch, epoch);
    order_->epoch = epoch;
  }
  const int64_t repeats = (samples_ + s.dataset_size - 1) / s.dataset_size;  // maximum per sample and epoch
  std::vector<Slot> slots;
  slots.reserve(static_cast<size_t>(s.micro_batches * s.batch_size));
  for (int64_t m = 0; m < s.micro_batches; ++m) {
    const int64_t k = m * s.world + s.rank, first = begin + k * each + std::min(k, larger);
    const int64_t count = each + (k < larger);
    for (int64_t b = 0; b < s.batch_size; ++b) {
      const int64_t position = first + std::min(b, count - 1);  // the key of an empty slot has no effect
      const int64_t sample = s.shuffle ? order_->order[position] : position;
      slots.push_back({b < count ? sample % s.dataset_size : -1, epoch * samples_per_epoch() + position,
                       epoch * repeats + sample / s.dataset_size});
    }
  }
  return slots;
}

}  // namespace blipft
