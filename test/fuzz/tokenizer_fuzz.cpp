// A tokenizer's files. The input has lines "=== NAME", each followed by the content of the file NAME; what stands
// behind "=== text" becomes ids.
#include <vector>

#include "blipft/config.h"
#include "blipft/text.h"
#include "fuzz/fuzz_target.h"

namespace {

constexpr std::string_view mark = "=== ";
const std::vector<std::string> files = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                        "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model",
                                        "config.json", "chat_template.jinja"};

/// The content behind "=== `name`" and a line end, up to the next mark at a line's start; null where there is none.
std::string_view part(std::string_view input, std::string_view name) {
  for (size_t at = 0; at < input.size();) {
    size_t end = input.find("\n=== ", at);
    end = end == std::string_view::npos ? input.size() : end + 1;
    const std::string_view section = input.substr(at, end - at);
    if (section.starts_with(mark) && section.substr(mark.size()).starts_with(name) &&
        section.substr(mark.size() + name.size()).starts_with('\n'))
      return section.substr(mark.size() + name.size() + 1);
    at = end;
  }
  return {};
}

}  // namespace

BLIPFT_FUZZ_TARGET(tokenizer) {
  using namespace blipft;
  static const testing::FuzzFolder folder;
  for (const std::string& file : files) {
    const std::string_view content = part(input, file);
    if (content.data()) folder.write(file, content);
    else folder.remove(file);
  }
  testing::refuses_or_takes([&] {
    const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(folder.path(), {});
    Config config;
    config.model.path = folder.path();
    (void)text_settings(config.data, config, config.model.path, *tokenizer);
    (void)tokenizer->pad_id();
    for (const std::string& text : {std::string(part(input, "text")),
                                    std::string("Is it 7\u00e9?  \n<s> \u2581x</s>")}) {
      TextPositions positions;
      positions.bytes = {0, text.size() / 2};
      (void)tokenizer->encode_with_positions(text, positions);
      for (const int32_t id : tokenizer->encode(text))
        if (id < -1) std::abort();
    }
  });
}
