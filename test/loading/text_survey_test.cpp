// Texts known before a run: what is found, what is left out, and the text shapes that follow.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>

#include "blipft/error.h"
#include "blipft/config.h"
#include "blipft/loading.h"
#include "loading/step_order.h"
#include "loading/text_shapes.h"
#include "loading/text_survey.h"
#include "support/byte_tokenizer.h"
#include "support/choice_of.h"
#include "support/error_message.h"

using namespace blipft;
using testing::ByteTokenizer;
using testing::message_of;

namespace {

const ByteTokenizer kTokenizer({3});

/// Prompts that are only read, and answers, of random lengths.
class Dialogues final : public Dataset {
 public:
  Dialogues(int64_t size, int64_t longest, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int64_t i = 0; i < size; ++i)
      lengths_.push_back({static_cast<size_t>(random() % static_cast<uint64_t>(longest)),
                          1 + static_cast<size_t>(random() % 9)});
  }
  int64_t broken = -1;
  mutable std::atomic<int64_t> reads{0};
  int64_t size() const override { return static_cast<int64_t>(lengths_.size()); }
  Sample read(int64_t index) const override {
    ++reads;
    if (index >= broken && broken >= 0) throw UserError(concat("line ", index, " is broken"));
    const auto [prompt, answer] = lengths_.at(static_cast<size_t>(index));
    return {concat("line ", index), {{std::string(prompt, 'p'), false}, {std::string(answer, 'a'), true}}, {}};
  }
  int64_t prompt(int64_t index) const { return static_cast<int64_t>(lengths_.at(static_cast<size_t>(index)).first); }
  int64_t tokens(int64_t index) const {
    return prompt(index) + static_cast<int64_t>(lengths_.at(static_cast<size_t>(index)).second) + 2;
  }

 private:
  std::vector<std::pair<size_t, size_t>> lengths_;
};

Config text_config() {
  Config config;
  config.file = "run.yaml";
  config.data.path = "dialogues.jsonl";
  config.data.max_text_tokens = 40;
  config.data.num_workers = 2;
  config.steps.batch_size = 3;
  config.steps.accumulate_grad_batches = 2;
  config.steps.max_epochs = 3;
  config.steps.seed = 5;
  return config;
}

const ModelInputs kText{.text = {.vocabulary = 128, .max_tokens = 100}};

SampleSet survey(const Config& config, const std::shared_ptr<const Dataset>& dataset, int64_t threads = 2) {
  return survey_samples(config, {dataset, config.data.num_train_samples}, kTokenizer, {.text = {.vocabulary = 128}}, threads);
}

int64_t padded_sum(const std::map<int64_t, int64_t>& counts, const std::vector<int64_t>& sizes) {
  int64_t sum = 0;
  for (const auto& [size, count] : counts) sum += count * *std::lower_bound(sizes.begin(), sizes.end(), size);
  return sum;
}

}  // namespace

TEST_SUITE("text survey") {
  TEST_CASE("least padded sizes: as good as the best of all choices") {
    std::mt19937 random(3);
    for (int round = 0; round < 300; ++round) {
      std::map<int64_t, int64_t> counts;
      const size_t different = 1 + random() % 9;
      while (counts.size() < different) counts[1 + random() % 60] = random() % 20;
      const size_t maximum = 1 + random() % 5;
      const std::vector<int64_t> chosen = min_padded_sizes(counts, maximum);
      CHECK(chosen.size() == std::min(maximum, counts.size()));
      CHECK(std::is_sorted(chosen.begin(), chosen.end()));
      REQUIRE(chosen.back() == counts.rbegin()->first);
      std::vector<int64_t> sizes;
      for (const auto& [size, count] : counts) sizes.push_back(size);
      int64_t minimum = std::numeric_limits<int64_t>::max();
      for (uint32_t set = 0; set < 1u << (sizes.size() - 1); ++set) {
        std::vector<int64_t> some;
        for (size_t i = 0; i + 1 < sizes.size(); ++i)
          if (set >> i & 1) some.push_back(sizes[i]);
        some.push_back(sizes.back());
        if (some.size() <= maximum) minimum = std::min(minimum, padded_sum(counts, some));
      }
      CHECK(padded_sum(counts, chosen) == minimum);
    }
  }

  TEST_CASE("a survey counts, cuts and leaves out, with any number of threads") {
    const Dialogues dialogues(500, 60, 1);
    for (const int64_t threads : {1, 4}) {
      const TextSurvey found(dialogues, kTokenizer, {400, 40, 128, threads});
      CHECK(found.surveyed() == 400);
      int64_t cut = 0;
      std::vector<int64_t> kept, lengths;
      std::vector<std::string> names;
      for (int64_t i = 0; i < 400; ++i) {
        cut += dialogues.tokens(i) > 40;
        if (dialogues.prompt(i) + 1 >= 40) names.push_back(concat("line ", i));  // the answer begins behind the cut
        else kept.push_back(i), lengths.push_back(std::min<int64_t>(40, dialogues.tokens(i)));
      }
      CHECK(found.cut() == cut);
      CHECK(found.samples() == kept);
      CHECK(found.lengths() == lengths);
      REQUIRE(names.size() > 5);
      CHECK(found.left_out() == static_cast<int64_t>(names.size()));
      names.resize(5);
      CHECK(found.left_out_names() == names);
      REQUIRE(found.has_texts());
      for (size_t i = 0; i < kept.size(); ++i) {
        CHECK(found.text(static_cast<int64_t>(i)).max_tokens() == lengths[i]);
        CHECK(found.text(static_cast<int64_t>(i)).texts.front().has_target());
      }
      const TextSurvey lean(dialogues, kTokenizer, {400, 40, 128, threads, 1000});
      CHECK(!lean.has_texts());
      CHECK(lean.lengths() == lengths);
    }
  }

  TEST_CASE("a survey fails with the first sample that cannot be read") {
    Dialogues dialogues(1000, 30, 1);
    dialogues.broken = 321;
    for (const int64_t threads : {1, 3})
      CHECK(message_of([&] { TextSurvey(dialogues, kTokenizer, {0, 40, 128, threads}); }) ==
            "line 321 is broken; data.on_bad_sample=skip leaves such samples out");
  }

  TEST_CASE("a survey that skips leaves out what cannot be read, and says so") {
    auto dialogues = std::make_shared<Dialogues>(100, 20, 1);
    const SampleSet whole = survey(text_config(), dialogues);
    dialogues->broken = 93;
    Config config = text_config();
    config.data.on_bad_sample = FaultAction::skip;
    const SampleSet set = survey(config, dialogues);
    CHECK(set.texts->bad() == 7);
    CHECK(set.texts->left_out() == 0);
    CHECK(set.dataset->size() == 93);
    CHECK(std::equal(set.texts->lengths().begin(), set.texts->lengths().end(), whole.texts->lengths().begin()));
    CHECK(survey_text(config, *set.texts).find(", 7 skipped that cannot be read (line 93 is broken, line 94") !=
          std::string::npos);
    dialogues->broken = 0;
    const std::string message = message_of([&] { survey(config, dialogues); });
    CHECK_MESSAGE(message.find("100 cannot be read: line 0 is broken") != std::string::npos, message);
  }

  TEST_CASE("training samples: those with labels among the first N, or an error") {
    const auto dialogues = std::make_shared<Dialogues>(50, 60, 2);
    Config config = text_config();
    const SampleSet all = survey(config, dialogues);
    CHECK(all.dataset->size() == static_cast<int64_t>(all.texts->samples().size()));
    CHECK(all.dataset->size() < 50);
    CHECK(all.epoch_samples == 0);
    CHECK(all.dataset->read(7).name == concat("line ", all.texts->samples()[7]));
    CHECK(survey_text(config, *all.texts).find("cut to data.max_text_tokens 40") != std::string::npos);
    CHECK(survey_text(config, *all.texts).find("left out that have nothing to learn (line ") != std::string::npos);
    config.data.num_train_samples = 20;
    const SampleSet some = survey(config, dialogues);
    CHECK(some.texts->surveyed() == 20);
    CHECK(some.dataset->size() == static_cast<int64_t>(some.texts->samples().size()));
    config.data.num_train_samples = 120;   // repeats
    CHECK(survey(config, dialogues).epoch_samples == 120);
    config.data.max_text_tokens = 1;
    const std::string message = message_of([&] { survey(config, dialogues); });
    for (const char* part : {"run.yaml", "dialogues.jsonl", "none of the 50 texts", "max_text_tokens", "line 0"})
      CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  }

  TEST_CASE("shapes hold every step of every rank, and the loader takes texts from the survey") {
    const auto dialogues = std::make_shared<Dialogues>(200, 30, 4);
    const auto device = make_cpu_device(1);
    for (const char* padding : {"packed", "longest", "max"})
      for (const int64_t world : {1, 3}) {
        CAPTURE(padding);
        CAPTURE(world);
        Config config = text_config();
        config.data.text_padding = choice_of<TextPadding>(padding);
        const SampleSet set = survey(config, dialogues);
        const std::vector<TextShape> shapes = surveyed_text_shapes(config, world, set);
        CHECK(shapes.size() <= 16);
        std::set<int64_t> used_sizes;
        double size = 0, steps = 0;
        for (int64_t rank = 0; rank < world; ++rank) {
          const auto tokenizer = std::make_shared<ByteTokenizer>(kTokenizer);
          const int64_t before = dialogues->reads;
          const auto loader = make_data_loader(config, rank, world, kText, shapes, tokenizer, set, *device);
          const auto plain = make_data_loader(config, rank, world, kText, possible_text_shapes(config), tokenizer,
                                              {set.dataset}, *device);
          while (const HostBatch* batch = loader->next()) {
            const HostBatch* other = plain->next();
            const TextShape& shape = batch->layout.text();
            CHECK(std::count(shapes.begin(), shapes.end(), shape) == 1);
            size += static_cast<double>(shape.packed() ? shape.packed_rows : shape.tokens);
            ++steps;
            CHECK(batch->texts_without_target == 0);
            CHECK(batch->text_tokens_used == other->text_tokens_used);
            for (const BatchPart part : {BatchField::lengths, BatchField::label_counts, BatchField::sample_keys}) {
              const Tensor a = batch->layout.whole(part, batch->block), b = other->layout.whole(part, other->block);
              CHECK(!std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())));
            }
            used_sizes.insert(shape.packed() ? shape.packed_rows : shape.tokens);
            loader->give_back(batch);
            plain->give_back(other);
          }
          CHECK(plain->next() == nullptr);
          CHECK(dialogues->reads - before <= set.dataset->size() * 3);  // the plain loader's alone
        }
        CHECK(used_sizes.size() == shapes.size());  // no shape is there for nothing
        if (padding != std::string("max")) {
          const TextShape mean = mean_text_shape(config, world, set, shapes);
          CHECK(mean.packed() == shapes.back().packed());
          CHECK(std::abs(static_cast<double>(mean.packed() ? mean.packed_rows : mean.tokens) - size / steps) <= 0.5);
        }
        const int64_t longest = *std::max_element(set.texts->lengths().begin(), set.texts->lengths().end());
        const int64_t rounded = std::min<int64_t>(40, (longest + 7) / 8 * 8);
        CHECK(shapes.back().tokens == (padding == std::string("max") ? 40 : rounded));
      }
  }

  TEST_CASE("shapes follow the steps that come, not what may come: fewer rows than the possible ones") {
    const auto dialogues = std::make_shared<Dialogues>(3000, 60, 6);
    Config config = text_config();
    config.data.max_text_tokens = 2048;
    config.steps.batch_size = 16;
    const SampleSet set = survey(config, dialogues);
    const std::vector<TextShape> shapes = surveyed_text_shapes(config, 2, set);
    CHECK(shapes.back().tokens <= 72);
    CHECK(shapes.back().packed_rows <= 16 * 72);
    CHECK(possible_text_shapes(config).back().packed_rows == 16 * 2048);
    CHECK(surveyed_text_shapes(config, 2, survey(config, dialogues, 7)) == shapes);
  }

  TEST_CASE("where not all steps are looked at, the last shape holds whatever may come") {
    const auto dialogues = std::make_shared<Dialogues>(40, 30, 7);
    Config config = text_config();
    config.data.shuffle = false;
    config.data.num_train_samples = int64_t{1} << 26;
    config.steps.batch_size = 1024;
    config.steps.accumulate_grad_batches = 1;
    const SampleSet set = survey(config, dialogues);
    const int64_t longest = *std::max_element(set.texts->lengths().begin(), set.texts->lengths().end());
    CHECK(surveyed_text_shapes(config, 1, set).back().packed_rows == 1024 * longest);
    config.steps.max_steps = 3;
    CHECK(surveyed_text_shapes(config, 1, set).back().packed_rows < 1024 * longest * 3 / 4);
  }
}
