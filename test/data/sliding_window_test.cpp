// Texts against a model's sliding window: it matters for texts that are longer than it, not for those that might be.
#include <doctest/doctest.h>

#include "blipft/data.h"
#include "support/error_message.h"

using namespace blipft;

TEST_SUITE("sliding window") {
  TEST_CASE("max_text_tokens may be larger than the window where every text is shorter") {
    Config config;
    config.file = "run.yaml";
    config.data.max_text_tokens = 512;
    ModelInputs inputs;
    inputs.max_text_tokens = 1024;
    inputs.sliding_window = 100;
    const auto message = [&](int64_t longest) {
      return testing::message_of([&] { check_sliding_window(config, inputs, longest); });
    };
    CHECK(message(100).empty());
    CHECK(testing::message_of([&] { check_text_length(config, inputs); }).empty());
    const std::string long_text = message(101);
    for (const char* part : {"run.yaml", "found 512 (the default)", "a text of 101 tokens", "give data.max_text_tokens=100"})
      CHECK_MESSAGE(long_text.find(part) != std::string::npos, long_text);
    config.train.loss_on_padding = true;     // then padding is text
    config.data.text_padding = "max";
    CHECK(!message(5).empty());
    inputs.sliding_window = 0;
    CHECK(message(5000).empty());
  }
}
