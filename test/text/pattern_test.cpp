// Patterns in Oniguruma's syntax. The expected results come from the Hugging Face library (tools/compare_tokenizers.py
// draws more).
#include "text/pattern.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "blipft/error.h"
#include "blipft/family.h"
#include "blipft/text.h"
#include "support/error_message.h"

using namespace blipft;

namespace {

using Words = std::vector<std::string>;

Words words(const std::string& expression, const std::string& text,
            SplitStep::Behavior behavior = SplitStep::Behavior::isolated, bool inverted = false) {
  const std::vector<std::string_view> found =
      split(text, {{std::make_shared<Pattern>(expression, "file"), behavior, inverted}});
  return {found.begin(), found.end()};
}

std::string error_of(const std::string& expression) {
  return testing::message_of([&] { (void)Pattern(expression, "tokenizer.json: Split.pattern"); });
}

}  // namespace

TEST_SUITE("pattern") {
  TEST_CASE("constructs mean what they mean in Oniguruma") {
    const std::vector<std::tuple<std::string, std::string, Words>> cases = {
        // Each of these compiles in PCRE2 as it stands, and finds something else.
        {R"(x{1,3}+)", "xxxxxxx", {"xxxxxxx"}},
        {R"(x{,2})", "xxx1xx", {"xx", "x", "1", "xx"}},
        {R"(\h+)", "abx12", {"ab", "x", "12"}},
        {R"([a-z&&[^aeiou]bc])", "abcde", {"a", "b", "c", "d", "e"}},
        {R"([^a-y&&b-z])", "abz", {"a", "b", "z"}},
        {R"(^.)", "ab\ncd\n", {"a", "b\n", "c", "d\n"}},
        {R"($)", "ab\ncd\n", {"ab", "\ncd", "\n"}},
        {R"((?m:.+))", "a\nb", {"a\nb"}},
        {R"(.+)", "a\nb\r\nc\u2028d", {"a", "\n", "b\r", "\n", "c\u2028d"}},
        {R"(a(?i)b|c)", "xaBxCxcxac", {"x", "aB", "xCxcx", "ac"}},
        {R"(\s+)", "a\u180e \u0085b", {"a\u180e", " \u0085", "b"}},
        {R"(\w+)", "a\u0301\u00b2\u203f\u24b6!", {"a\u0301\u00b2\u203f\u24b6", "!"}},
        {R"(\b)", "ab cd\u00b2", {"ab", " ", "cd\u00b2"}},
        {R"(\d+)", "1\u0663x", {"1\u0663", "x"}},
        {R"(\p{Han}+)", "a\u6f22\u3001\u30fc\U00031350", {"a", "\u6f22", "\u3001\u30fc", "\U00031350"}},
        {R"([[:punct:]])", "a+,", {"a", "+", ","}},
        {R"(\p{punct})", "a+,", {"a+", ","}},
        {R"(\v)",
         "a\x0b"
         "b\n\u2028",
         {"a", "\x0b", "b\n\u2028"}},
        {R"([\b])", "a\x08", {"a", "\x08"}},
        {R"([[:^alpha:]])", "a1", {"a", "1"}},
        {R"(\R)", "a\r\nb\n\r\u0085", {"a", "\r\n", "b", "\n", "\r", "\u0085"}},
        {R"((?i:'s|k))", "'\u017f\u212ax", {"'\u017f", "\u212a", "x"}},
        {R"((?i:\p{Lu}))", "xaB", {"xa", "B"}},
        {R"((?i:[\x{41}\x{10d50}]))", "xa\U00010d70", {"x", "a", "\U00010d70"}},
        {R"((?i:[^a]))", "aAb", {"aA", "b"}},
        {R"((?i:[ßa]1))", "ss1\u1e9e1x", {"ss1", "\u1e9e1", "x"}},
        // Characters of Unicode 15, 15.1 and 16.
        {R"(\p{L}+)",
         "\u1c89\u1c8a\U00011bc0\U0001e4d0 \U0002ebf0",
         {"\u1c89\u1c8a\U00011bc0\U0001e4d0", " ", "\U0002ebf0"}},
        {R"(\p{N}+)", "\U00010d40\U00011f50a", {"\U00010d40\U00011f50", "a"}},
        {R"(x++x)", "xxx", {"xxx"}},
        {R"(x*?)", "xxy", {"x", "x", "y"}},
        {"", "ab", {"a", "b"}},
        {R"(\N+\O)", "ab\nc", {"ab\n", "c"}},
        {R"((?>[op]+?p?+)p{2,})", "popppp", {"p", "opppp"}},
        {R"((?<=a)b|b(?!c)|(?>d)(?#e)f)", "abbcbdf", {"a", "b", "bc", "b", "df"}},
    };
    for (const auto& [expression, text, expected] : cases) {
      INFO(expression);
      CHECK(words(expression, text) == expected);
    }
  }

  TEST_CASE("a match of many repetitions of a group takes memory, and is found") {
    CHECK(words("(?:a|bc)+", std::string(200000, 'a') + "d") == Words{std::string(200000, 'a'), "d"});
  }

  TEST_CASE("what is done with matches") {
    using enum SplitStep::Behavior;
    CHECK(words("-", "a--b-", removed) == Words{"a", "b"});
    CHECK(words("-", "a--b-", isolated) == Words{"a", "-", "-", "b", "-"});
    CHECK(words("-", "a--b-", contiguous) == Words{"a", "--", "b", "-"});
    CHECK(words("-", "a--b-", merged_with_previous) == Words{"a-", "-", "b-"});
    CHECK(words("-", "a--b-", merged_with_next) == Words{"a", "-", "-b", "-"});
    CHECK(words("[a-z]+", "a1b", removed, true) == Words{"a", "b"});
  }

  TEST_CASE("what is not known to be the same is refused") {
    for (const char* expression :
         {R"((a)\1)",      R"((?<n>a)\k<n>)", R"(\X)",      R"(\K)",          R"(\Ga)",
          R"(\y)",         R"((?~ab))",       R"((?x: a))", R"((?W:\w))",     R"((*FAIL))",
          R"((?R))",       R"(\Q.\E)",        R"(\pL)",     R"(\p{sc=Han})",  R"(\p{Hani})",
          R"(\p{Common})", R"(\xE9)",         R"(\u12)",    R"([a)",          R"([])",
          R"([]a])",       R"([a-c-e])",      R"([\w-a])",  R"([b-a])",       R"([a&&])",
          R"([[:foo:]])",  R"(a{2,1})",       R"(a{2}?)",   R"(a{2)",         R"({)",
          R"(a])",         R"(a**+*)",        R"(^*)",      R"((?=a)+)",      R"((?i:ss))",
          R"((?i:s{2}))",  R"((?i:s(?:s)))",  R"((?i:ß))", R"((?i:fi))",
          R"(a))",         R"((a)",           R"((?i)",     R"(\)",           R"([\)",
          R"((?<=a+)b)",   R"(\cA)",          R"(\101)",    R"(\p{L)",        "a{0,1000000000}",
          "a{1000000000}"}) {
      INFO(expression);
      const std::string message = error_of(expression);
      CHECK(message.starts_with("tokenizer.json: Split.pattern: "));
      CHECK(message.find(std::string("\"") + expression) != std::string::npos);
    }
  }

  TEST_CASE("hostile patterns end in an error within a second") {
    const auto seconds = [](auto&& run) {
      const auto start = std::chrono::steady_clock::now();
      const std::string message = testing::message_of(run);
      INFO(message);
      CHECK(message.starts_with("f: "));
      CHECK(message.size() < 1000);
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    const auto repeated = [](const std::string& part, size_t count) {
      std::string out;
      for (size_t i = 0; i < count; ++i) out += part;
      return out;
    };
    std::string many;
    for (int i = 0; i < 300; ++i)
      many += "\\u" + std::string(1, "0123456789abcdef"[4 + i / 256]) + "0" + "0123456789abcdef"[i / 16 % 16] +
              "0123456789abcdef"[i % 16];
    for (const std::string& expression :
         {repeated("(", 5000) + repeated(")", 5000), repeated("[", 5000) + "a" + repeated("]", 5000),
          repeated("(?:", 50) + "a" + repeated("{1000})", 50) + "{1000}", many, repeated("[\\p{L}\\p{Han}]", 2000),
          repeated("a?", 9000)}) {
      INFO(expression.substr(0, 40));
      CHECK(seconds([&] { (void)Pattern(expression, "f"); }) < 1);
    }
    for (const char* expression : {"(?:a+)+[bc]", "(?:a|a)*[bc]", "(?:a*)*[bc]", "a*a*a*a*a*a*[bc]",
                                   "(?:a?){30}a{30}[bc]", "(?:.*a){20}[bc]", "(?:(?:(?:a?)+)+)+[bc]"}) {
      INFO(expression);
      const Pattern pattern(expression, "f");
      CHECK(seconds([&] { (void)pattern.matches(std::string(2000, 'a') + "!c"); }) < 1);
    }
  }

  // tools/compare_tokenizers.py makes the folder.
  TEST_CASE("the tokenizers of a folder give the ids and texts of their cases" * doctest::skip()) {
    namespace fs = std::filesystem;
    const char* const root = std::getenv("BLIPFT_TOKENIZERS");
    REQUIRE(root != nullptr);
    size_t tokenizers = 0, texts = 0, refused = 0;
    for (const auto& folder : fs::directory_iterator(root)) {
      const auto json = nlohmann::json::parse(std::ifstream(folder.path() / "cases.json"));
      std::unique_ptr<Tokenizer> tokenizer;
      const std::string message = testing::message_of([&] { tokenizer = load_tokenizer(folder.path().string(), {}); });
      const auto name = json["name"].get<std::string>();
      INFO(name);
      ++tokenizers;
      if (!message.empty()) {
        ++refused;
        std::cout << "refused " << message << std::endl;
        INFO(message);
        CHECK(json["may_be_refused"].get<bool>());
        continue;
      }
      for (const auto& entry : json["cases"]) {
        ++texts;
        const std::string label = entry.dump();
        INFO(label);
        const auto ids = tokenizer->encode(entry["text"], {.add_special_tokens = false});
        CHECK(ids == entry["ids"].get<std::vector<int32_t>>());
        CHECK(tokenizer->decode(ids, {.skip_special_tokens = false}) == entry["decoded"].get<std::string>());
      }
    }
    CHECK(tokenizers > refused);
    std::cout << "compared " << tokenizers << " tokenizers, " << refused << " refused, " << texts << " texts"
              << std::endl;
  }
}
