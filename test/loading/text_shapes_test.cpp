// The text shapes that a config makes possible.
#include <doctest/doctest.h>

#include "blipft/loading.h"
#include "blipft/config.h"
#include "loading/text_shapes.h"

using namespace blipft;

TEST_SUITE("loader") {
  TEST_CASE("text shapes") {
    Config config;
    config.data.text_padding = TextPadding::longest;
    using Shapes = std::vector<TextShape>;
    CHECK(possible_text_shapes(config) == Shapes{{8}, {16}, {24}, {32}, {40}, {48}, {50}});
    config.data.max_text_tokens = 16;
    CHECK(possible_text_shapes(config) == Shapes{{8}, {16}});
    config.data.text_padding = TextPadding::max;
    CHECK(possible_text_shapes(config) == Shapes{{16}});
    config.data.max_text_tokens = 1;
    CHECK(possible_text_shapes(config) == Shapes{{2}});
    config.data.text_padding = TextPadding::packed;
    CHECK(possible_text_shapes(config) == Shapes{{2, 24}, {2, 32}});
    config.steps.batch_size = 1;
    CHECK(possible_text_shapes(config) == Shapes{{2, 2}});
    config.data.max_text_tokens = 50;
    config.steps.batch_size = 64;
    const Shapes shapes = possible_text_shapes(config);
    CHECK(shapes.size() == 25);
    CHECK(shapes.front() == TextShape{50, 128});
    CHECK(shapes[1] == TextShape{50, 256});
    CHECK(shapes.back() == TextShape{50, 3200});
  }

  TEST_CASE("auto packs where padding is not trained, and balances where nothing depends on who shares a micro-batch") {
    Config config;
    config.steps.accumulate_grad_batches = 2;
    CHECK(possible_text_shapes(config).back().packed_rows == 16 * 50);
    CHECK(balances_micro_batches(config));
    config.steps.loss_normalization = LossNormalization::micro_batch;
    CHECK(possible_text_shapes(config).back().packed_rows == 16 * 50);
    CHECK(!balances_micro_batches(config));
    config.steps.loss_on_padding = true;
    CHECK(possible_text_shapes(config).back().packed_rows == 0);
  }
}
