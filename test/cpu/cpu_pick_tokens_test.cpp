// pick_tokens on the CPU: greedy search against transformers' generate(), the tokens that sampling leaves against its
// logits processors (the golden set "generation"), draws, and what has no choice.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "io/json.h"
#include "support/decode_texts.h"
#include "support/golden_files.h"

namespace blipft::test {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

TableModel model_of(const Json& golden) {
  return {golden["seed"], golden["vocabulary"], golden["ends"], golden["bonus"]};
}

/// Chooses tokens for rows of logits that lie in ordinary memory.
struct Picker {
  std::unique_ptr<Ops> ops = make_cpu_ops();
  TokenRules rules;
  Ids ends;
  std::vector<float> logits, scores, log_probs;

  explicit Picker(const Ids& end_ids) : ends(end_ids) {}

  /// Row r is of slot slots[r].
  void pick(DecodeTexts& texts, int64_t vocabulary, Ids slots) {
    const auto rows = static_cast<int64_t>(slots.size());
    scores.resize(logits.size());
    log_probs.resize(texts.ids.size());
    if (!ends.empty()) rules.ends = tensor_of(ends, {static_cast<int64_t>(ends.size())});
    PickTokens args;
    args.logits = tensor_of(logits, {rows, vocabulary}), args.scores = tensor_of(scores, {rows, vocabulary});
    args.slots = tensor_of(slots, {rows});
    args.rules = rules, args.state = texts.state();
    args.log_probs = tensor_of(log_probs, {texts.slots, texts.maximum});
    ops->pick_tokens(args, {});
  }
};

/// Runs a greedy case: text i in slot 2 i + 1, rows in the opposite order, a row of no slot before them.
DecodeTexts run_greedy(const Json& golden, Picker& picker) {
  const TableModel model = model_of(golden);
  const auto count = static_cast<int64_t>(golden["prompts"].size());
  DecodeTexts texts(2 * count + 1, 20);
  picker.rules.repetition_penalty = golden["repetition_penalty"];
  picker.rules.min_new_tokens = golden["min_new_tokens"], picker.rules.min_length = golden["min_length"];
  Ids slots{-1};
  for (int64_t i = count - 1; i >= 0; --i) {
    const Ids prompt = golden["prompts"][static_cast<size_t>(i)];
    texts.start(2 * i + 1, prompt, static_cast<int64_t>(prompt.size()) + golden["max_new_tokens"].get<int64_t>());
    slots.push_back(static_cast<int32_t>(2 * i + 1));
  }
  while (texts.any_grows()) {
    picker.logits.assign(slots.size() * static_cast<size_t>(model.vocabulary), 0);
    for (size_t r = 1; r < slots.size(); ++r)
      texts.logits(model, slots[r], picker.logits.data() + static_cast<int64_t>(r) * model.vocabulary);
    picker.pick(texts, model.vocabulary, slots);
  }
  return texts;
}

/// The log softmax of the logits that led to the ids.
void check_log_probs(const DecodeTexts& texts, const TableModel& model, const std::vector<float>& log_probs,
                     int64_t slot) {
  const Ids ids = texts.text(slot);
  std::vector<float> row(static_cast<size_t>(model.vocabulary));
  for (size_t n = static_cast<size_t>(texts.prompt_lengths[static_cast<size_t>(slot)]); n < ids.size(); ++n) {
    model.logits(n > 1 ? ids[n - 2] : 0, ids[n - 1], static_cast<int64_t>(n), row.data());
    double total = 0;
    for (float x : row) total += std::exp(static_cast<double>(x));
    const double expected = static_cast<double>(row[static_cast<size_t>(ids[n])]) - std::log(total);
    // f32: numbers up to 8, the largest one taken off and a logarithm up to 4.
    CHECK(static_cast<double>(log_probs[static_cast<size_t>(slot * texts.maximum) + n]) ==
          doctest::Approx(expected).epsilon(2e-6));
  }
}

Json golden_cases(const char* file, const std::function<bool(const Json&)>& wanted) {
  Json all = io::read_json_file(testing::golden_path(concat("generation/", file))), some = Json::array();
  for (const Json& golden : all)
    if (wanted(golden)) some.push_back(golden);
  return some;
}

/// `count` draws from a row of logits: how often each token came. Texts have the keys 0, 1, ...
std::vector<int64_t> draws(const std::vector<float>& row, const TokenRules& rules, int64_t count) {
  constexpr int64_t kRows = 500;
  const auto vocabulary = static_cast<int64_t>(row.size());
  Picker picker({});
  picker.rules = rules;
  std::vector<int64_t> counts(row.size());
  for (int64_t first = 0; first < count; first += kRows) {
    DecodeTexts texts(kRows, 3);
    Ids slots;
    picker.logits.clear();
    for (int64_t s = 0; s < kRows; ++s) {
      texts.start(s, {0}, 3, first + s);
      slots.push_back(static_cast<int32_t>(s));
      picker.logits.insert(picker.logits.end(), row.begin(), row.end());
    }
    picker.pick(texts, vocabulary, slots);
    for (int64_t s = 0; s < kRows; ++s) ++counts[static_cast<size_t>(texts.ids[static_cast<size_t>(s * 3 + 1)])];
  }
  return counts;
}

}  // namespace

TEST_SUITE("cpu_pick_tokens") {
  TEST_CASE("greedy search gives the ids of transformers' generate()") {
    const Json cases = golden_cases("texts.json", [](const Json& golden) { return golden["beams"] == 0; });
    CHECK(cases.size() >= 80);
    int64_t ended = 0;
    for (const Json& golden : cases) {
      CAPTURE(golden.dump());
      Picker picker(golden["ends"].get<Ids>());
      const DecodeTexts texts = run_greedy(golden, picker);
      for (size_t i = 0; i < golden["prompts"].size(); ++i) {
        const auto slot = static_cast<int64_t>(2 * i + 1);
        const Ids expected = golden["texts"][i][0], found = texts.new_ids(slot);
        CHECK(found == expected);
        const bool end = std::find(picker.ends.begin(), picker.ends.end(), found.back()) != picker.ends.end();
        CHECK(texts.done[2 * i + 1] == (end ? kEndToken : kLengthReached));
        ended += end;
        check_log_probs(texts, model_of(golden), picker.log_probs, slot);
      }
      for (size_t s = 0; s < texts.lengths.size(); s += 2) CHECK(texts.lengths[s] == 0);  // empty ones stay
    }
    CHECK(ended > 80);
  }

  TEST_CASE("sampling leaves the tokens that transformers' processors leave, and chooses one of them") {
    const Json cases = golden_cases("masks.json", [](const Json&) { return true; });
    CHECK(cases.size() >= 100);
    for (const Json& golden : cases) {
      CAPTURE(golden.dump());
      const TableModel model = model_of(golden);
      Picker picker(golden["ends"].get<Ids>());
      picker.rules.sample = true, picker.rules.seed = 5;
      picker.rules.temperature = golden["temperature"], picker.rules.top_k = golden["top_k"];
      picker.rules.top_p = golden["top_p"], picker.rules.min_p = golden["min_p"];
      picker.rules.repetition_penalty = golden["repetition_penalty"];
      picker.rules.min_new_tokens = golden["min_new_tokens"];
      const Ids ids = golden["ids"];
      DecodeTexts texts(1, 30);
      texts.start(0, ids, 30);
      picker.logits.resize(static_cast<size_t>(model.vocabulary));
      model.logits(0, 0, 0, picker.logits.data());
      if (golden.contains("halves"))
        for (float& x : picker.logits) x = std::nearbyint(2 * x) / 2;
      picker.pick(texts, model.vocabulary, {0});
      std::string kept;
      for (float x : picker.scores) kept += x > -INFINITY ? '1' : '0';
      CHECK(kept == golden["kept"].get<std::string>());
      CHECK(*std::max_element(picker.scores.begin(), picker.scores.end()) == golden["best"].get<float>());
      CHECK(kept[static_cast<size_t>(texts.new_ids(0).at(0))] == '1');
    }
  }

  TEST_CASE("tokens are drawn as often as their probabilities say") {
    std::vector<float> row;
    for (int i = 0; i < 12; ++i) row.push_back(std::log(static_cast<float>(i % 5 + 1)) + 3);
    for (float temperature : {1.0f, 2.0f}) {
      TokenRules rules;
      rules.sample = true, rules.seed = 77, rules.temperature = temperature;
      constexpr int64_t kDraws = 20000;
      const auto counts = draws(row, rules, kDraws);
      double total = 0, chi_square = 0;
      for (float x : row) total += std::exp(static_cast<double>(x / temperature));
      for (size_t i = 0; i < row.size(); ++i) {
        const double expected = kDraws * std::exp(static_cast<double>(row[i] / temperature)) / total;
        const double off = static_cast<double>(counts[i]) - expected;
        chi_square += off * off / expected;
      }
      CHECK(chi_square < 31.3);  // 11 degrees of freedom: once in a thousand seeds, and the seed is fixed
      CHECK(chi_square > 1);
    }
    TokenRules rules;
    rules.sample = true, rules.top_k = 1;
    CHECK(draws({1, 3, 2, 3}, rules, 500)[1] > 150);  // both of the equal ones
    CHECK(draws({1, 3, 2, 3}, rules, 500)[3] > 150);
    rules.top_k = 0, rules.top_p = 1e-6f;             // of equal ones the first
    CHECK(draws({1, 3, 2, 3}, rules, 500)[1] == 500);
    rules.top_p = 1, rules.min_p = 1;
    CHECK(draws({1, 3, 2, 3}, rules, 500)[2] == 0);
  }

  TEST_CASE("a draw depends on seed, key and number of the new token, not on slot, row and neighbours") {
    constexpr int64_t kVocabulary = 50;
    const TableModel model{3, kVocabulary, {}, 0};
    const auto grown = [&](uint64_t seed, int64_t slots, const Ids& used, int64_t key) {
      Picker picker({});
      picker.rules.sample = true, picker.rules.seed = seed, picker.rules.top_p = 0.95f;
      DecodeTexts texts(slots, 30);
      for (size_t i = 0; i < used.size(); ++i)
        texts.start(used[i], i == 0 ? Ids{4, 9} : Ids{static_cast<int32_t>(i), 7, 7}, 30 - static_cast<int64_t>(i),
                    i == 0 ? key : static_cast<int64_t>(i) + 1000);
      Ids rows(used.rbegin(), used.rend());
      while (texts.any_grows()) {
        picker.logits.resize(rows.size() * kVocabulary);
        for (size_t r = 0; r < rows.size(); ++r) texts.logits(model, rows[r], picker.logits.data() + r * kVocabulary);
        picker.pick(texts, kVocabulary, rows);
      }
      return std::pair(texts.text(used[0]), std::vector<float>(picker.log_probs.begin() + used[0] * 30 + 2,
                                                               picker.log_probs.begin() + used[0] * 30 + 30));
    };
    const auto alone = grown(1, 1, {0}, 5);
    CHECK(grown(1, 4, {2, 0, 3}, 5) == alone);
    CHECK(grown(1, 7, {6, 5, 1, 0}, 5) == alone);
    CHECK(grown(2, 1, {0}, 5).first != alone.first);
    CHECK(grown(1, 1, {0}, 6).first != alone.first);
    CHECK(grown(1, 1, {0}, 5 + (int64_t{1} << 32)).first != alone.first);
  }

  TEST_CASE("logits without a choice end a text, and a text at its limit gets nothing") {
    const float inf = INFINITY, nan = std::nanf("");
    for (bool sample : {false, true})
      for (const std::vector<float>& row :
           {std::vector<float>{1, nan, 2}, {nan, nan, nan}, {1, inf, 2}, {-inf, -inf, -inf}, {-nan, 1, 2},
            {-inf, -inf, 4}}) {  // the last one's only token is barred
        Picker picker({2});
        picker.rules.sample = sample, picker.rules.min_new_tokens = 1;
        DecodeTexts texts(3, 4);
        texts.start(0, {1, 1}, 4);
        texts.start(1, {1, 0}, 4);
        texts.start(2, {1, 0, 2, 2}, 4);
        picker.logits = row;
        picker.logits.insert(picker.logits.end(), {1, -inf, 0.5f, 1, 1, 1});
        picker.pick(texts, 3, {0, 1, 2});
        CHECK(texts.done == Ids{kNoChoice, kRunning, kLengthReached});
        CHECK(texts.text(0) == Ids{1, 1});
        CHECK(texts.text(1) == Ids{1, 0, 0});
        CHECK(texts.text(2) == Ids{1, 0, 2, 2});
      }
  }

  TEST_CASE("wrong rules are refused by name") {
    Picker picker({});
    DecodeTexts texts(1, 4);
    texts.start(0, {1}, 4);
    picker.logits = {1, 2, 3};
    const auto refused = [&](auto change, const char* message) {
      TokenRules rules = picker.rules;
      change(picker.rules);
      CHECK_THROWS_WITH_AS(picker.pick(texts, 3, {0}), doctest::Contains(message), Error);
      picker.rules = rules;
    };
    refused([](TokenRules& r) { r.temperature = 0; }, "rules.temperature is 0, expected a number above 0");
    refused([](TokenRules& r) { r.top_p = 1.5f; }, "rules.top_p is 1.5, expected 0 < top_p <= 1");
    refused([](TokenRules& r) { r.top_k = -1; }, "rules.top_k is -1");
    refused([](TokenRules& r) { r.min_p = 2; }, "rules.min_p is 2");
    refused([](TokenRules& r) { r.repetition_penalty = 0; }, "rules.repetition_penalty is 0");
  }
}

}  // namespace blipft::test
