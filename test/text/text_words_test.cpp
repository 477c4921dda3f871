// Texts taken apart into words as pre-tokenizers do, and their Unicode.
#include <doctest/doctest.h>

#include "text/pattern.h"
#include "text/unicode.h"

using namespace blipft;

namespace {

using Words = std::vector<std::string>;

/// The words of a text, each where the pattern matches or does not.
Words words_of(const std::string& text, const std::string& expression) {
  const std::vector<std::string_view> words = split(text, {{std::make_shared<Pattern>(expression, "pattern")}});
  return {words.begin(), words.end()};
}
const char* const llama3_expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const tekken_expression =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

TEST_SUITE("tokenizer") {
  TEST_CASE("the GPT-2 pattern") {
    const auto words = [](const std::string& text) { return words_of(text, gpt2_expression); };
    CHECK(words("") == Words{});
    CHECK(words("it's  a b") == Words{"it", "'s", " ", " a", " b"});
    CHECK(words("x \t y\n") == Words{"x", " \t", " y", "\n"});
    CHECK(words("\ty") == Words{"\t", "y"});
    CHECK(words("!'s ' 12ab") == Words{"!'", "s", " '", " 12", "ab"});
    CHECK(words("   ") == Words{"   "});
  }

  TEST_CASE("the pattern of LLaMA 3") {
    const auto words = [](const std::string& text) { return words_of(text, llama3_expression); };
    CHECK(words("") == Words{});
    CHECK(words("It'S we'llx 'tis") == Words{"It", "'S", " we", "'ll", "x", " '", "tis"});
    CHECK(words("(a\tb \u0301c") == Words{"(a", "\tb", " \u0301", "c"});
    CHECK(words("12345 6") == Words{"123", "45", " ", "6"});
    CHECK(words("a  \n \n  b") == Words{"a", "  \n \n", " ", " b"});
    CHECK(words("x!\r\n\n y \n") == Words{"x", "!\r\n\n", " y", " \n"});
    CHECK(words("\na") == Words{"\n", "a"});
    CHECK(words("   ") == Words{"   "});
    CHECK(words_of("12 3", R"(\p{N})") == Words{"1", "2", " ", "3"});
  }

  TEST_CASE("the pattern of tekken: capitals and small letters are words of their own") {
    const auto words = [](const std::string& text) { return words_of(text, tekken_expression); };
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
    const auto nfc = [](const char* text) { return unicode::normalized(text, unicode::NormalForm::nfc); };
    CHECK(nfc("e\u0301") == "\u00e9");
    CHECK(nfc("\u1112\u1161\u11ab") == "\ud55c");
    CHECK(nfc("q\u0307\u0323") == "q\u0323\u0307");  // ordered by class
    CHECK(nfc("\u0958") == "\u0915\u093c");          // excluded from composition
    CHECK(nfc("\u212b") == "\u00c5");
  }
}
