// The PTB tokenizer against the jar of Stanford CoreNLP 3.4.1, and the engine of its rules.
#include <doctest/doctest.h>

#include "evaluate/golden_metrics.h"
#include "evaluate/ptb_tokenizer.h"
#include "evaluate/scanner_rules.h"
#include "text/letter_case.h"

using namespace blipft;

TEST_SUITE("ptb tokenizer golden") {
  TEST_CASE("odd texts become the words that pycocoevalcap makes of them") {
    PtbTokenizer tokenizer;
    const auto golden = testing::golden_metrics("ptb.json");
    CHECK(golden.size() >= 900);
    for (const auto& item : golden) {
      CAPTURE(item[0].get<std::string>());
      CHECK(tokenizer.words(item[0].get<std::string>()) == item[1].get<std::string>());
    }
  }

  TEST_CASE("a text has the same words whatever was tokenized before") {
    const auto golden = testing::golden_metrics("ptb.json");
    for (size_t i = 0; i < golden.size(); i += 300) {
      PtbTokenizer fresh;
      CHECK(fresh.words(golden[i][0].get<std::string>()) == golden[i][1].get<std::string>());
    }
  }
}

TEST_SUITE("ptb tokenizer") {
  TEST_CASE("tokens keep punctuation") {
    PtbTokenizer tokenizer;
    CHECK(tokenizer.tokens("\"No,\" he said (etc.).") ==
          std::vector<std::string>{"``", "no", ",", "''", "he", "said", "-lrb-", "etc.", "-rrb-", "."});
    CHECK(tokenizer.words("\"No,\" he said (etc.).") == "no he said -lrb- etc. -rrb-");
    CHECK(tokenizer.words("") == "");
    CHECK(tokenizer.words("one\ntwo\x0bthree\u2028"
                          "four") == "one two three four");
  }

  TEST_CASE("broken UTF-8 and characters that nobody knows end no run") {
    PtbTokenizer tokenizer;
    CHECK(tokenizer.words("a \xff\xc3 b") == "a b");
    std::string all;
    for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
    CHECK(!tokenizer.tokens(all).empty());
    CHECK(tokenizer.tokens(std::string(20000, '.')).size() == 4000);  // five at a time
  }

  TEST_CASE("a rule's follower is no part of the token, and the longest match wins") {
    ScannerRules rules;
    rules.name_class("digit", {{'0', '9'}});
    rules.name_pattern("number", "<digit>{1,3}");
    const auto word = rules.add("[a-z]+"), before = rules.add("[a-z]+", "<number>x"),
               number = rules.add("<number>|\\x0041b?");
    const auto match = [&](const std::u32string& text) { return rules.match(text, 0); };
    CHECK(match(U"ab1").rule == word);
    CHECK(match(U"ab1").length == 2);
    CHECK(match(U"ab123x").rule == before);
    CHECK(match(U"ab123x").length == 2);
    CHECK(match(U"ab1234x").rule == word);
    CHECK(match(U"1234").length == 3);
    CHECK(match(U"AB").rule == number);
    CHECK(match(U"AB").length == 2);  // a letter of a pattern stands for both cases
    CHECK(match(U"%").rule == -1);
    CHECK_THROWS(rules.add("(a"));
    CHECK_THROWS(rules.add("<unheard of>"));
  }

  TEST_CASE("capitals of any script become small") {
    CHECK(in_small_letters(std::string_view("ÀÉÎ Ж Ω İ ẞ")) == "àéî ж ω i̇ ß");
    CHECK(in_small_letters(std::string_view("ΟΔΟΣ ΣΑΣ")) == "οδος σας");
  }
}
