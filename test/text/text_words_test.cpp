// Texts taken apart into words as pre-tokenizers do, and their Unicode.
#include <doctest/doctest.h>

#include "text/tokenizer_split.h"
#include "text/unicode.h"

using namespace blipft;

namespace {

using Words = std::vector<std::string>;

Words words_of(const std::string& text, SplitPattern pattern) {
  Words out;
  for (std::string_view word : split_words(text, pattern)) out.emplace_back(word);
  return out;
}

}  // namespace

TEST_SUITE("tokenizer") {
  TEST_CASE("the GPT-2 pattern") {
    const auto words = [](const std::string& text) { return words_of(text, SplitPattern::gpt2); };
    CHECK(words("") == Words{});
    CHECK(words("it's  a b") == Words{"it", "'s", " ", " a", " b"});
    CHECK(words("x \t y\n") == Words{"x", " \t", " y", "\n"});
    CHECK(words("\ty") == Words{"\t", "y"});
    CHECK(words("!'s ' 12ab") == Words{"!'", "s", " '", " 12", "ab"});
    CHECK(words("   ") == Words{"   "});
  }

  TEST_CASE("the patterns of LLaMA 3 and Qwen 2") {
    const auto words = [](const std::string& text) { return words_of(text, SplitPattern::llama3); };
    CHECK(words("") == Words{});
    CHECK(words("It'S we'llx 'tis") == Words{"It", "'S", " we", "'ll", "x", " '", "tis"});
    CHECK(words("(a\tb \u0301c") == Words{"(a", "\tb", " \u0301", "c"});
    CHECK(words("12345 6") == Words{"123", "45", " ", "6"});
    CHECK(words("a  \n \n  b") == Words{"a", "  \n \n", " ", " b"});
    CHECK(words("x!\r\n\n y \n") == Words{"x", "!\r\n\n", " y", " \n"});
    CHECK(words("\na") == Words{"\n", "a"});
    CHECK(words("   ") == Words{"   "});
    CHECK(words_of("12 3", SplitPattern::qwen2) == Words{"1", "2", " ", "3"});
    CHECK(words_of("12 3", SplitPattern::none) == Words{"12 3"});
  }

  TEST_CASE("the pattern of tekken: capitals and small letters are words of their own") {
    const auto words = [](const std::string& text) { return words_of(text, SplitPattern::tekken); };
    CHECK(words("camelCase HTTPServer 12") == Words{"camel", "Case", " HTTPServer", " ", "1", "2"});
    CHECK(words("ABC\u4e2dDEF aB/\n/c") == Words{"ABC\u4e2d", "DEF", " a", "B", "/\n/", "c"});
  }

  TEST_CASE("ill-formed UTF-8 becomes U+FFFD, one for each maximal part") {
    const std::string r = "\xEF\xBF\xBD";
    CHECK(unicode::repair_utf8("a\xFFz") == "a" + r + "z");
    CHECK(unicode::repair_utf8("\xE2\x82") == r);
    CHECK(unicode::repair_utf8("\xE2\x82x") == r + "x");
    CHECK(unicode::repair_utf8("\xED\xA0\x80") == r + r + r);
    CHECK(unicode::repair_utf8("\xC0\xAF") == r + r);
    CHECK(unicode::repair_utf8("\xF0\x9F\x98\x80") == "\xF0\x9F\x98\x80");
  }

  TEST_CASE("NFC") {
    CHECK(unicode::nfc("e\u0301") == "\u00e9");
    CHECK(unicode::nfc("\u1112\u1161\u11ab") == "\ud55c");
    CHECK(unicode::nfc("q\u0307\u0323") == "q\u0323\u0307");  // ordered by class
    CHECK(unicode::nfc("\u0958") == "\u0915\u093c");          // excluded from composition
    CHECK(unicode::nfc("\u212b") == "\u00c5");
  }
}
