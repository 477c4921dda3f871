// Records of text: a list, or lines, where the input begins with "[", else lines.
#include <algorithm>

#include "blipft/data.h"
#include "fuzz/fuzz_target.h"

BLIPFT_FUZZ_TARGET(json_records) {
  using namespace blipft;
  static const testing::FuzzFolder folder;
  const std::string file = folder.write(input.starts_with('[') ? "data.json" : "data.jsonl", input);
  TextSettings settings;
  settings.prompt_style = "{instruction} and {input}:";
  settings.bos_token = "<s>", settings.eos_token = "</s>";
  for (const char* chat_template : {"llama2", "llama3", "chatml", "zephyr"}) {
    settings.chat_template = chat_template;
    testing::refuses_or_takes([&] {
      const auto dataset = open_dataset(file, "json", settings);
      for (int64_t i = 0; i < std::min<int64_t>(dataset->size(), 100); ++i)
        testing::refuses_or_takes([&] { (void)dataset->read(i); });
    });
  }
}
