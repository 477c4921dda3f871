// A pattern of tokenizer.json. The input's first line is the pattern, the rest a text that it splits.
#include "fuzz/fuzz_target.h"
#include "text/pattern.h"
#include "text/unicode.h"

BLIPFT_FUZZ_TARGET(pattern) {
  using namespace blipft;
  const size_t line = std::min(input.find('\n'), input.size());
  testing::refuses_or_takes([&] {
    const auto pattern =
        std::make_shared<Pattern>(unicode::repair_utf8(input.substr(0, line)), "tokenizer.json: Split");
    const std::string text = unicode::repair_utf8(input.substr(std::min(line + 1, input.size())).substr(0, 256));
    size_t size = 0;
    for (const std::string_view word : split(text, {{pattern}})) size += word.size();
    if (size != text.size()) std::abort();
  });
}
