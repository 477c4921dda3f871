// The callbacks of a generator, and when it calls them: with a host that waits for the device, and with one that runs ahead.
#include <doctest/doctest.h>

#include <map>

#include "generate/golden_rank.h"

using namespace blipft;
using namespace blipft::test;

namespace {

constexpr int64_t kAtOnce = 2;             // of GoldenRank

/// Texts to be generated, and what became of them.
struct Run {
  std::vector<int64_t> new_tokens;         // of each text
  std::map<int64_t, std::vector<GeneratedText>> found;
  std::vector<int64_t> order;              // in which they ended
  int64_t requested = 0, max_under_way = 0;   // asked for; and not told yet
  bool ended = false;                      // was told so

  GeneratorCalls calls() {
    GeneratorCalls calls;
    calls.next = [this]() -> std::optional<TextRequest> {
      CHECK_FALSE(ended);
      ended = requested == static_cast<int64_t>(new_tokens.size());
      if (ended) return std::nullopt;
      max_under_way = std::max(max_under_way, requested + 1 - static_cast<int64_t>(order.size()));
      const auto number = requested++;
      return TextRequest{number, {static_cast<int32_t>(3 + number), 7, 5}, new_tokens[static_cast<size_t>(number)], {}};
    };
    calls.done = [this](TextResult result) {
      CHECK(result.seconds >= 0);
      order.push_back(result.number);
      CHECK(found.emplace(result.number, std::move(result.texts)).second);
    };
    return calls;
  }
  size_t size() const { return new_tokens.size(); }
};

GoldenRank rank_of(int64_t beams) { return {"llama_gqa", beams, {3, 11}, 12}; }

const std::vector<int64_t> kUneven = {12, 1, 3, 9, 2, 12, 1, 1, 7, 10, 4}, kEven(7, 9);

}  // namespace

TEST_SUITE("generator") {
  TEST_CASE("a host that runs ahead asks and tells the same, and waits for no more texts than there are at once") {
    for (const int64_t beams : {1, 3})
      for (const std::vector<int64_t>& new_tokens : {kUneven, kEven, std::vector<int64_t>{5}, std::vector<int64_t>{}}) {
        CAPTURE(beams);
        CAPTURE(new_tokens.size());
        GoldenRank rank = rank_of(beams);
        Run with{new_tokens}, ahead{new_tokens};
        Generator(*rank.engine->decoder, beams, true).run(with.calls());
        Generator(*rank.engine->decoder, beams, false).run(ahead.calls());
        for (const Run* run : {&with, &ahead}) {
          CHECK(run->ended);
          REQUIRE(run->found.size() == run->size());
        }
        for (const auto& [number, texts] : with.found) {
          REQUIRE(texts.size() == ahead.found.at(number).size());
          for (size_t i = 0; i < texts.size(); ++i) {
            CHECK(static_cast<int64_t>(texts[i].ids.size()) == new_tokens[static_cast<size_t>(number)]);
            CHECK(texts[i].ids == ahead.found.at(number)[i].ids);
            // f32, some tens of sums of some tens of terms, and products of other numbers of rows
            CHECK(texts[i].score == doctest::Approx(ahead.found.at(number)[i].score).epsilon(1e-5));
          }
        }
        if (new_tokens == kEven) CHECK(std::is_sorted(ahead.order.begin(), ahead.order.end()));
        CHECK(with.max_under_way == std::min<int64_t>(kAtOnce, with.requested));
        CHECK(ahead.max_under_way == std::min<int64_t>(2 * kAtOnce, ahead.requested));
      }
  }

  // `any` is asked whether a rank reads prompts until none does, whether it has texts, and whether these grow.
  TEST_CASE("a host that runs ahead tells what has ended when the next prompts and their tokens are enqueued") {
    GoldenRank rank = rank_of(1);
    Run run{kEven};
    std::string log;
    GeneratorCalls calls = run.calls();
    calls.any = [&](bool mine) {
      log += mine ? 'Y' : 'n';
      return mine;
    };
    calls.done = [&, done = calls.done](TextResult result) {
      log += 't';
      done(std::move(result));
    };
    Generator(*rank.engine->decoder, 1, false).run(calls);
    CAPTURE(log);
    CHECK(log.find("YnYYtt") != std::string::npos);
    CHECK(log.find("YnYYtt") + 4 == log.find('t'));
    CHECK(run.size() == run.order.size());
  }

  TEST_CASE("an error of next_request is thrown when its text is due: earlier texts are reported") {
    for (const bool synchronous : {true, false}) {
      CAPTURE(synchronous);
      GoldenRank rank = rank_of(1);
      Run run{kUneven};
      GeneratorCalls calls = run.calls();
      calls.next = [&run, next = calls.next, failed = false]() mutable {
        CHECK_FALSE(failed);
        failed = run.requested == 6;
        if (failed) throw Error("no seventh text");
        return next();
      };
      CHECK_THROWS_WITH_AS(Generator(*rank.engine->decoder, 1, synchronous).run(calls), "no seventh text", Error);
      CHECK(run.requested == 6);
      CHECK(run.found.size() >= static_cast<size_t>(run.requested - kAtOnce + 1));  // the seventh needs a free place
    }
  }

  TEST_CASE("an error of on_finished ends the run, and nothing is reported after it") {
    for (const bool synchronous : {true, false}) {
      CAPTURE(synchronous);
      GoldenRank rank = rank_of(1);
      Run run{kEven};
      GeneratorCalls calls = run.calls();
      calls.done = [&run, done = calls.done](TextResult result) {
        done(std::move(result));
        if (run.order.size() == 3) throw Error("the disk is full");
      };
      CHECK_THROWS_WITH_AS(Generator(*rank.engine->decoder, 1, synchronous).run(calls), "the disk is full", Error);
      CHECK(run.order == std::vector<int64_t>{0, 1, 2});
    }
  }

  TEST_CASE("an error of should_stop ends the run; texts that ended before are reported") {
    for (const bool synchronous : {true, false}) {
      CAPTURE(synchronous);
      GoldenRank rank = rank_of(1);
      Run run{{2, 9, 9}};
      GeneratorCalls calls = run.calls();
      calls.stops = [](std::span<const int32_t> ids) -> std::optional<size_t> {
        if (ids.size() > 2) throw Error("no text");
        return std::nullopt;
      };
      CHECK_THROWS_WITH_AS(Generator(*rank.engine->decoder, 1, synchronous).run(calls), "no text", Error);
      CHECK(run.order == std::vector<int64_t>{0});
    }
  }

  TEST_CASE("a text grows token by token, and is reported after its last one") {
    for (const bool synchronous : {true, false}) {
      CAPTURE(synchronous);
      GoldenRank rank = rank_of(1);
      Run run{kUneven};
      std::map<int64_t, std::vector<int32_t>> grown;
      GeneratorCalls calls = run.calls();
      calls.grown = [&](int64_t number, std::span<const int32_t> ids) {
        CHECK(ids.size() == grown[number].size() + 1);
        CHECK(run.found.count(number) == 0);
        grown[number].assign(ids.begin(), ids.end());
      };
      Generator(*rank.engine->decoder, 1, synchronous).run(calls);
      REQUIRE(run.found.size() == run.size());
      for (const auto& [number, texts] : run.found) CHECK(texts.at(0).ids == grown[number]);
    }
  }
}
