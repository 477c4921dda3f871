// Average sizes of steps of captions, estimated from a sample.
#include "loading/text_sample.h"

#include <doctest/doctest.h>

#include "blipft/config.h"
#include "support/byte_tokenizer.h"

using namespace blipft;

namespace {

/// Caption i has 3 + i % 3 bytes, and the id before every text; number 5 cannot be read, number 7 has none.
class Captions final : public Dataset {
 public:
  int64_t size() const override { return 12; }
  Sample read(int64_t) const override { throw Error("no picture is wanted"); }
  Prompt read_prompt(int64_t index) const override {
    if (index == 5) throw UserError("a broken line");
    Prompt prompt;
    if (index != 7) prompt.references = {std::string(static_cast<size_t>(3 + index % 3), 'a'), "another"};
    return prompt;
  }
};

}  // namespace

TEST_SUITE("loader") {
  TEST_CASE("captions that are looked at: evenly spread, cut, without those that cannot be read") {
    Config config;
    const testing::ByteTokenizer tokenizer;
    CHECK(sampled_text_lengths(config, Captions(), tokenizer, 256) ==
          std::vector<int64_t>{4, 5, 6, 4, 5, 4, 6, 4, 5, 6});
    CHECK(sampled_text_lengths(config, Captions(), tokenizer, 256, 4) == std::vector<int64_t>{4, 4, 4, 4});
    config.data.max_text_tokens = 5;
    CHECK(sampled_text_lengths(config, Captions(), tokenizer, 256, 3) == std::vector<int64_t>{4, 5, 5});
  }

  TEST_CASE("the mean of captions' steps: their packed rows, the longest of a step, or all that may come") {
    Config config;
    config.steps.batch_size = 2;
    const std::vector<int64_t> lengths = {9, 1, 12, 20};
    const std::vector<TextShape> packed = {{50, 16}, {50, 32}, {50, 64}}, padded = {{8}, {16}, {24}, {50}};
    config.data.text_padding = TextPadding::packed;     // 10 and 32 rows in turn: shapes of 16 and 32
    CHECK(mean_text_shape(config, lengths, packed) == TextShape{50, 24});
    config.data.text_padding = TextPadding::longest;    // 9 and 20 tokens: shapes of 16 and 24
    CHECK(mean_text_shape(config, lengths, padded) == TextShape{20});
    CHECK(mean_text_shape(config, {}, packed) == packed.back());
    CHECK(mean_text_shape(config, {70, 70}, padded) == padded.back());
    // Micro-batches that are balanced: 9 + 12 and 1 + 20 in place of 10 and 32.
    config.data.text_padding = TextPadding::packed;
    config.steps.accumulate_grad_batches = 2;
    CHECK(mean_text_shape(config, lengths, {{50, 21}, {50, 32}}) == TextShape{50, 21});
  }
}
