// A chat template: the input is its text, which renders two conversations.
#include "fuzz/fuzz_target.h"
#include "text/jinja_template.h"

BLIPFT_FUZZ_TARGET(chat_template) {
  using namespace blipft;
  static const nlohmann::ordered_json variables = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                 {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5}}}]}],
    "tools": null, "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})");
  testing::refuses_or_takes([&] {
    const ChatTemplate chat(input, "chat_template.jinja");
    const ChatTemplate::Text text = chat.render(variables, std::tm{});
    for (const auto& [begin, end] : text.spans)
      if (begin > end || end > text.text.size()) std::abort();
  });
}
