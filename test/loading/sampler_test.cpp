// Sampler: which samples make up a step, for every rank and epoch.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "blipft/error.h"
#include "blipft/loading.h"
#include "loading/sampler_settings.h"
#include "support/error_message.h"

using namespace blipft;
using testing::message_of;
using testing::settings;

namespace {

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

}  // namespace

TEST_SUITE("sampler") {
  TEST_CASE("an epoch is a permutation, the next epoch another one") {
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

  TEST_CASE("a step's samples are dealt as evenly as can be, the rest of the places stays empty") {
    for (const int64_t total : {5, 7, 12, 23, 24})
      for (const int64_t world : {1, 2, 3, 5})
        for (const int64_t micro : {1, 2, 4}) {
          CAPTURE(total);
          CAPTURE(world);
          CAPTURE(micro);
          const int64_t parts = world * micro, batch = (total + parts - 1) / parts;
          Sampler::Settings even = settings(60, total, 1), s = settings(60, batch, micro, world);
          even.step_samples = s.step_samples = total;
          CHECK(Sampler(s).steps_per_epoch() == 60 / total);
          CHECK(Sampler(s).samples_per_epoch() == 60 / total * total);
          for (const int64_t step : {int64_t{0}, int64_t{1}, 60 / total, int64_t{7}}) {
            const std::vector<Sampler::Slot> all = global_slots(s, step), expected = global_slots(even, step);
            std::vector<Sampler::Slot> drawn;
            for (int64_t part = 0; part < parts; ++part) {
              int64_t count = 0;
              for (int64_t b = 0; b < batch; ++b) {
                const Sampler::Slot& slot = all.at(static_cast<size_t>(part * batch + b));
                if (slot.sample < 0) continue;
                CHECK(count == b);         // what is empty comes last
                ++count;
                drawn.push_back(slot);
              }
              CHECK((count == total / parts || count == total / parts + 1));
            }
            REQUIRE(drawn.size() == expected.size());
            for (size_t i = 0; i < drawn.size(); ++i) {
              CHECK(drawn[i].sample == expected[i].sample);
              CHECK(drawn[i].key == expected[i].key);
            }
          }
        }
  }

  TEST_CASE("positions are evenly likely") {
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

  TEST_CASE("the global batch does not depend on how it is dealt") {
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

  TEST_CASE("repeats, subsets, fractions") {
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
}
