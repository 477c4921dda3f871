// An encoder-decoder that no family of src/ is: gradients against differences of the loss, recomputation to the same bits,
// and packing on both sides against padding.
#include "models/gradient_check.h"
#include "support/toy_encoder_decoder.h"

using namespace blipft;
using testing::Rig;
using testing::ToyEncoderDecoder;

namespace {

constexpr TextShape kPadded{12, 0, 12, 0}, kPacked{12, 28, 12, 40};

testing::MakeModel made(const ToyEncoderDecoder::Design& design) {
  return [design](const ModelSettings& settings) { return std::make_unique<ToyEncoderDecoder>(design, settings); };
}

}  // namespace

TEST_SUITE("encoder-decoder") {
  TEST_CASE("gradients agree with differences of the loss, recomputation is the same to the bit") {
    for (const bool tied : {false, true})
      for (const float dropout : {0.0f, 0.2f})
        for (const TextShape& text : {kPadded, kPacked}) {
          CAPTURE(tied);
          CAPTURE(dropout);
          CAPTURE(text.packed_rows);
          testing::check_gradients(made({dropout, tied}), dropout > 0, text);
          testing::check_recomputation(made({dropout, tied}), dropout > 0, text);
        }
  }

  TEST_CASE("packing changes no loss and no gradient, with dropout neither") {
    for (const float dropout : {0.0f, 0.2f}) {
      testing::Run padded(made({dropout, true}), dropout > 0, kPadded, "none");
      testing::Run packed(made({dropout, true}), dropout > 0, kPacked, "none");
      const float loss = padded.rig.loss_of(true);
      CHECK(packed.rig.loss_of(true) == doctest::Approx(loss).epsilon(1e-6));  // f32 sums over 24 labels in another order
      for (const Unit* unit : padded.rig.model->units()) {
        CAPTURE(unit->name());
        const std::vector<float> a = padded.gradients(*unit), b = packed.gradients(*unit);
        double difference = 0, norm = 0;
        for (size_t i = 0; i < a.size(); ++i) {
          difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
          norm += std::pow(static_cast<double>(a[i]), 2);
        }
        CHECK(norm > 0);
        CHECK(std::sqrt(difference) <= 1e-5 * std::sqrt(norm));  // f32 sums of up to 48 rows in another order
      }
    }
  }

  TEST_CASE("the source matters: another one is another loss") {
    testing::Run run(made({}), false, kPadded, "none");
    const float loss = run.rig.loss_of(true);
    const MicroBatch batch = run.layout.micro_batch(run.rig.block.data, 0);
    batch.source.ids.as<int32_t>()[0] += 1;
    CHECK(std::fabs(run.rig.loss_of(true) / loss - 1) > 1e-4f);
  }
}
