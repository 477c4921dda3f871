// The families' chat templates against transformers (tools/blipft_golden/chat_templates.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>

#include <nlohmann/json.hpp>

#include "blipft/datasets.h"
#include "config/config_schema.h"
#include "support/byte_tokenizer.h"
#include "support/error_message.h"
#include "support/golden_files.h"
#include "text/chat_families.h"

using namespace blipft;
using Json = nlohmann::json;

namespace {

uint32_t fnv(const std::string& text) {
  uint32_t value = 0x811C9DC5;
  for (const char c : text) value = (value ^ static_cast<uint8_t>(c)) * 0x01000193u;
  return value;
}

TextSettings golden_settings() {
  TextSettings settings;
  settings.bos_token = "<s>";
  settings.eos_token = "</s>";
  settings.chat_date_short = "09 Jan 2025";
  settings.chat_date_long = "09 January 2025";
  return settings;
}

std::vector<ChatMessage> messages_of(const Json& list) {
  std::vector<ChatMessage> messages;
  for (const Json& message : list) messages.push_back({message["role"], message["content"]});
  return messages;
}

std::string text_of(const std::vector<Dataset::Segment>& segments) {
  std::string text;
  for (const Dataset::Segment& segment : segments) text += segment.text;
  return text;
}

/// What is learnt, a text for each answer.
std::vector<std::string> labels_in(const std::vector<Dataset::Segment>& segments) {
  std::vector<std::string> texts;
  for (const Dataset::Segment& segment : segments)
    if (segment.learnt) texts.push_back(segment.text);
  return texts;
}

}  // namespace

TEST_SUITE("chat families") {
  TEST_CASE("conversations and generation prompts are what transformers makes of them with the published texts") {
    std::ifstream in(testing::golden_path("text/families.json"));
    const Json golden = Json::parse(in);
    const TextSettings settings = golden_settings();
    int64_t compared = 0, refused = 0;
    CHECK(golden["families"].size() >= 17);
    for (const auto& [name, family] : golden["families"].items()) {
      const auto known = std::find_if(chat_families().begin(), chat_families().end(),
                                      [&, family_name = name](const ChatFamily& one) { return one.name == family_name; });
      REQUIRE(known != chat_families().end());
      for (const Json& digest : family["digests"]) {
        const uint64_t value = std::stoull(digest.get<std::string>(), nullptr, 16);
        CAPTURE(name);
        CHECK(std::count(known->published.begin(), known->published.end(), value) == 1);
      }
      for (size_t i = 0; i < family["sums"].size(); ++i) {
        const Json& sums = family["sums"][i];
        const std::vector<ChatMessage> messages = messages_of(golden["conversations"][i]);
        CAPTURE(name);
        CAPTURE(golden["conversations"][i].dump());
        if (sums[0].is_null()) {
          CHECK_FALSE(testing::message_of([&] { render_chat(name, messages, settings, "here"); }).empty());
          ++refused;
          continue;
        }
        const auto segments = render_chat(name, messages, settings, "here");
        CHECK(fnv(text_of(segments)) == sums[0].get<uint32_t>());
        CHECK(fnv(render_prompt(name, messages, settings, "here")) == sums[1].get<uint32_t>());
        ++compared;
        // Of each answer all is learnt that the template leaves of it, and an end: nothing of what others say.
        size_t answers = 0;
        for (const ChatMessage& message : messages) answers += message.role == "assistant";
        CHECK(labels_in(segments).size() <= answers);
      }
    }
    CHECK(compared > 2000);
    CHECK(refused > 200);
    MESSAGE(compared << " conversations compared, " << refused << " refused as there");
  }

  TEST_CASE("what is learnt ends with the token that ends an answer's turn") {
    const std::vector<ChatMessage> messages = {{"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"},
                                               {"user", "e"}, {"assistant", "f", false}};
    using Texts = std::vector<std::string>;
    const auto learnt = [&](const char* name) { return labels_in(render_chat(name, messages, golden_settings(), "here")); };
    CHECK(learnt("llama3.1") == Texts{"b<|eot_id|>", "d<|eot_id|>"});
    CHECK(learnt("qwen2.5") == Texts{"b<|im_end|>", "d<|im_end|>"});
    CHECK(learnt("gemma2") == Texts{"b<end_of_turn>", "d<end_of_turn>"});
    CHECK(learnt("phi3") == Texts{"b<|end|>", "d<|end|>"});
    CHECK(learnt("phi4") == Texts{"b<|im_end|>", "d<|im_end|>"});
    CHECK(learnt("olmo2") == Texts{"b</s>", "d</s>"});
    CHECK(learnt("mistral_v3") == Texts{" b</s>", " d</s>"});
    // Qwen 3 thinks, be it nothing, before its last answer alone.
    CHECK(labels_in(render_chat("qwen3", {{"user", "a"}, {"assistant", "b"}, {"user", "c"},
                                          {"assistant", "<think>\nhm\n</think>\n\nd"}}, golden_settings(), "here")) ==
          Texts{"b<|im_end|>", "<think>\nhm\n</think>\n\nd<|im_end|>"});
    CHECK(labels_in(render_chat("qwen3", {{"user", "a"}, {"assistant", "b"}}, golden_settings(), "here")) ==
          Texts{"<think>\n\n</think>\n\nb<|im_end|>"});
  }

  TEST_CASE("the run file knows the names, and the date") {
    Config config;
    const testing::ByteTokenizer tokenizer;
    for (const std::string& name : chat_template_names()) {
      CAPTURE(name);
      config.data.chat_template = name;
      CHECK(text_settings(config, tokenizer).chat_template == name);
      const Key* const key = find_key("data", "chat_template");
      REQUIRE(key != nullptr);
      CHECK(std::count(key->allowed.choices.begin(), key->allowed.choices.end(), name) == 1);
      CHECK(key->allowed.choices.size() == chat_template_names().size() + 1);
    }
    config.data.chat_date = "2025-01-09";
    CHECK(text_settings(config, tokenizer).chat_date_short == "09 Jan 2025");
    CHECK(text_settings(config, tokenizer).chat_date_long == "09 January 2025");
    for (const char* wrong : {"", "2025-1-9", "2025-13-01", "today", "2025-01-09x"}) {
      config.data.chat_date = wrong;
      CHECK(testing::message_of([&] { text_settings(config, tokenizer); }).find("data.chat_date: found") != std::string::npos);
    }
  }
}
