// beam_step on the CPU against transformers' generate() (the golden set "generation"): ids,
// scores, and the slots in whose caches the beams' places lie.
#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <string>

#include "io/json.h"
#include "support/decode_texts.h"
#include "support/golden_files.h"

namespace blipft::test {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

/// Texts whose beams are searched, and a cache that holds ids in place of keys.
struct Search {
  static constexpr int64_t kPrefix = 3;
  std::unique_ptr<Ops> ops = make_cpu_ops();
  int64_t texts, beams, positions;
  DecodeTexts state;
  TokenRules rules;
  float length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::no;
  Ids ends, sources, ids_before, sources_before, finished_ids, finished_lengths, closed, cache;
  std::vector<float> logits, candidates, scores, finished_scores;

  Search(int64_t text_count, int64_t beam_count, int64_t maximum)
      : texts(text_count), beams(beam_count), positions(kPrefix + maximum), state(texts * beams, maximum), sources(size(), -1),
        ids_before(state.ids.size()), sources_before(size()), finished_ids(state.ids.size(), -3),
        finished_lengths(slots()), closed(static_cast<size_t>(texts), 1), cache(size(), -5), scores(slots()),
        finished_scores(slots()) {}

  size_t slots() const { return static_cast<size_t>(state.slots); }
  size_t size() const { return static_cast<size_t>(state.slots * positions); }
  void start(int64_t text, const Ids& prompt, int64_t limit) {
    state.start(text * beams, prompt, limit);
    std::copy(prompt.begin(), prompt.end(), cache.begin() + text * beams * positions + kPrefix);
  }
  /// Rows of the logits are of these texts.
  void step(int64_t vocabulary, Ids numbers, bool first) {
    const auto rows = static_cast<int64_t>(numbers.size());
    candidates.resize(static_cast<size_t>(rows * beams * vocabulary));
    if (!ends.empty()) rules.ends = tensor_of(ends, {static_cast<int64_t>(ends.size())});
    const int64_t maximum = state.maximum, all = state.slots;
    BeamStep args;
    args.logits = tensor_of(logits, {rows * (first ? 1 : beams), vocabulary});
    args.first = first, args.beams = beams, args.prefix_rows = kPrefix;
    args.texts = tensor_of(numbers, {rows});
    args.rules = rules, args.length_penalty = length_penalty, args.early_stopping = early_stopping;
    args.candidates = tensor_of(candidates, {rows * beams, vocabulary});
    args.state = state.state();
    args.sources = tensor_of(sources, {all, positions});
    args.ids_before = tensor_of(ids_before, {all, maximum});
    args.sources_before = tensor_of(sources_before, {all, positions});
    args.scores = tensor_of(scores, {texts, beams});
    args.finished_ids = tensor_of(finished_ids, {texts, beams, maximum});
    args.finished_lengths = tensor_of(finished_lengths, {texts, beams});
    args.finished_scores = tensor_of(finished_scores, {texts, beams});
    args.closed = tensor_of(closed, {texts});
    ops->beam_step(args, {});
  }
  /// The work of a decode step before the next logits: the last ids go into the cache, and each beam reads its text.
  void check_cache() {
    for (int64_t s = 0; s < state.slots; ++s)
      if (const Ids text = state.text(s); state.grows(s))
        cache[static_cast<size_t>(s * positions + kPrefix) + text.size() - 1] = text.back();
    for (int64_t s = 0; s < state.slots; ++s) {
      if (!state.grows(s)) continue;
      Ids read;
      for (int64_t j = kPrefix; j < kPrefix + static_cast<int64_t>(state.text(s).size()); ++j)
        read.push_back(cache[static_cast<size_t>(sources[static_cast<size_t>(s * positions + j)] * positions + j)]);
      CHECK(read == state.text(s));
      for (int64_t j = 0; j < kPrefix; ++j) CHECK(sources[static_cast<size_t>(s * positions + j)] == s / beams * beams);
    }
  }
  void search(const TableModel& model, const Ids& numbers) {
    for (bool first = true; state.any_grows(); first = false) {
      const int64_t rows = first ? 1 : beams;
      logits.resize(numbers.size() * static_cast<size_t>(rows * model.vocabulary));
      for (size_t i = 0; i < numbers.size(); ++i)
        for (int64_t b = 0; b < rows; ++b) {
          float* row = logits.data() + (static_cast<int64_t>(i) * rows + b) * model.vocabulary;
          if (numbers[i] < 0) std::fill_n(row, model.vocabulary, 0.0f);
          else state.logits(model, numbers[i] * beams + b, row);
        }
      step(model.vocabulary, numbers, first);
      check_cache();
    }
  }
  Ids finished(int64_t text, int64_t rank) const {
    const auto begin = finished_ids.begin() + (text * beams + rank) * state.maximum;
    return {begin, begin + finished_lengths[static_cast<size_t>(text * beams + rank)]};
  }
};

EarlyStopping early_stopping_of(const std::string& name) {
  return name == "yes" ? EarlyStopping::yes : name == "never" ? EarlyStopping::never : EarlyStopping::no;
}

/// Texts of a golden case; rows in the opposite order, one of no text among them.
Search searched(const Json& golden) {
  const auto count = static_cast<int64_t>(golden["prompts"].size());
  Search search(count + 1, golden["beams"], 20);
  search.ends = golden["ends"].get<Ids>();
  search.rules.repetition_penalty = golden["repetition_penalty"];
  search.rules.min_new_tokens = golden["min_new_tokens"], search.rules.min_length = golden["min_length"];
  search.length_penalty = golden["length_penalty"];
  search.early_stopping = early_stopping_of(golden["early_stopping"]);
  Ids numbers;
  for (int64_t i = count - 1; i >= 0; --i) {
    const Ids prompt = golden["prompts"][static_cast<size_t>(i)];
    search.start(i, prompt, static_cast<int64_t>(prompt.size()) + golden["max_new_tokens"].get<int64_t>());
    numbers.push_back(static_cast<int32_t>(i));
  }
  numbers.push_back(-1);
  search.search({golden["seed"], golden["vocabulary"], search.ends, golden["bonus"]}, numbers);
  return search;
}

}  // namespace

TEST_SUITE("cpu_beam_step") {
  TEST_CASE("beam search gives the ids and scores of transformers' generate()") {
    int64_t cases = 0, ended = 0;
    for (const Json& golden : io::read_json_file(testing::golden_path("generation/texts.json"))) {
      if (golden["beams"] == 0) continue;
      CAPTURE(golden.dump());
      ++cases;
      const Search search = searched(golden);
      for (size_t i = 0; i < golden["prompts"].size(); ++i) {
        const auto text = static_cast<int64_t>(i);
        ended += search.state.done[static_cast<size_t>(text * search.beams)] == kEndToken;
        for (int64_t b = 0; b < search.beams; ++b) {
          CAPTURE(i); CAPTURE(b);
          Ids expected = golden["prompts"][i];
          for (int32_t id : golden["texts"][i][static_cast<size_t>(b)].get<Ids>()) expected.push_back(id);
          CHECK(search.finished(text, b) == expected);
          // f32: a dozen sums of numbers down to -60, and a division.
          CHECK(search.finished_scores[static_cast<size_t>(text * search.beams + b)] ==
                doctest::Approx(golden["scores"][i][static_cast<size_t>(b)].get<float>()).epsilon(1e-5));
        }
      }
      for (int64_t s = search.state.slots - search.beams; s < search.state.slots; ++s)  // the empty text
        CHECK(search.state.lengths[static_cast<size_t>(s)] == 0);
    }
    CHECK(cases >= 200);
    CHECK(ended >= 100);
  }

  TEST_CASE("a text's beams do not depend on the texts beside it") {
    const TableModel model{9, 30, {2}, 2};
    const auto scores = [&](int64_t texts, int64_t rank) {
      Search search(texts, 3, 16);
      search.ends = model.ends;
      Ids numbers;
      for (int64_t t = 0; t < texts; ++t) {
        if (t == rank) search.start(t, {5, 6}, 14);
        else search.start(t, {static_cast<int32_t>(t), 7, 1}, 15 - t);
        numbers.push_back(static_cast<int32_t>(t));
      }
      search.search(model, numbers);
      const auto begin = search.finished_scores.begin() + rank * 3;
      return std::pair(search.finished(rank, 0), std::vector<float>(begin, begin + 3));
    };
    CHECK(scores(4, 2) == scores(1, 0));
    CHECK(scores(3, 0) == scores(1, 0));
  }

  TEST_CASE("equal scores are taken in the order of beam and id") {
    Search search(1, 2, 8);
    search.start(0, {1}, 8);
    search.logits = {1, 2, 2, 2, 1, 1};
    search.step(6, {0}, true);
    CHECK(search.state.text(0) == Ids{1, 1});
    CHECK(search.state.text(1) == Ids{1, 2});
    search.logits = {0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 3, 0};
    search.step(6, {0}, false);
    CHECK(search.state.text(0) == Ids{1, 1, 5});
    CHECK(search.state.text(1) == Ids{1, 2, 4});
    CHECK(search.scores[0] == search.scores[1]);
  }

  TEST_CASE("logits without a choice end a text, and a prompt at its limit has no beams") {
    Search search(2, 2, 4);
    search.start(0, {1, 2}, 4);
    search.start(1, {1, 2, 3}, 3);
    search.logits = {1, 2, 3, 4, 5, 4, 3, 2, 1, 0};
    search.step(5, {0, 1}, true);
    CHECK(search.state.done == Ids{kRunning, kRunning, kLengthReached, kLengthReached});
    CHECK(search.finished_lengths == Ids{0, 0, 0, 0});
    search.logits = {1, 2, 3, 4, 5, 1, std::nanf(""), 2, 3, 4};
    search.step(5, {0}, false);
    CHECK(search.state.done == Ids{kNoChoice, kNoChoice, kLengthReached, kLengthReached});
    CHECK(search.state.text(0) == Ids{1, 2, 4});
  }

  TEST_CASE("more candidates than there are tokens are refused") {
    Search search(1, 3, 4);
    search.start(0, {1}, 4);
    search.logits = {1, 2, 3, 4, 5};
    CHECK_THROWS_WITH_AS(search.step(5, {0}, true), doctest::Contains("3 beams with 6 candidates, expected at most 32 "
                         "beams and 5 candidates"), Error);
  }
}

}  // namespace blipft::test
