// Records of text: CSV where the input begins with "c" and a line end, which are left out; a list, or an object with one,
// or lines, where it begins with "[" or "{"; else lines.
#include <algorithm>

#include "blipft/datasets.h"
#include "datasets/record_pictures.h"
#include "fuzz/fuzz_target.h"
#include "io/json.h"
#include "text/chat_template.h"

BLIPFT_FUZZ_TARGET(json_records) {
  using namespace blipft;
  static const testing::FuzzFolder folder;
  const bool csv = input.starts_with("c\n");
  const char* const name = csv ? "data.csv" : input.starts_with('[') || input.starts_with('{') ? "data.json" : "data.jsonl";
  const std::string file = folder.write(name, csv ? input.substr(2) : input);
  TextSettings settings;
  settings.prompt_style = "{instruction} and {input}:";
  settings.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  testing::refuses_or_takes([&] {
    const auto record = io::parse_json<nlohmann::ordered_json>(input, "record");
    (void)picture_conversation_of(record, "messages", settings, "record");
  });
  for (const char* chat_template : {"llama2", "llama3", "chatml", "zephyr"}) {
    settings.chat_template = chat_format(chat_template);
    testing::refuses_or_takes([&] {
      const auto dataset = open_dataset(file, csv ? DatasetFormat::csv : DatasetFormat::json, settings);
      for (int64_t i = 0; i < std::min<int64_t>(dataset->size(), 100); ++i)
        testing::refuses_or_takes([&] { (void)dataset->read(i); });
    });
  }
}
