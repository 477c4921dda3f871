// An encoder-decoder that no family of src/ is: gradients against differences of the loss, recomputation to the same bits,
// and packing on both sides against padding.
#include "models/gradient_check.h"
#include "support/golden_files.h"
#include "support/toy_encoder_decoder.h"

using namespace blipft;
using testing::Rig;
using testing::ToyEncoderDecoder;

namespace {

constexpr TextShape kPadded{12, 0, 12, 0}, kPacked{12, 28, 12, 40};
constexpr TextShape kWider{17, 0, 12, 0}, kLongerSource{12, 0, 21, 0}, kWiderPacked{19, 28, 15, 40};

testing::MakeModel made(const ToyEncoderDecoder::Design& design) {
  return [design](const ModelSettings& settings) { return std::make_unique<ToyEncoderDecoder>(design, settings); };
}

// Properties that a rank's other samples and data.text_padding choose: the width to which samples are padded, and packing.
void check_padding(const testing::MakeModel& make, bool dropout) {
  testing::Run padded(make, dropout, kPadded, "none");
  const float loss = padded.rig.loss_of(true);
  const bool reads_source = padded.layout.inputs().has_source();
  for (TextShape text : {kPacked, kWider, kLongerSource, kWiderPacked}) {
    if (!reads_source) text.source_tokens = text.packed_source_rows = 0;
    CAPTURE(text.tokens); CAPTURE(text.source_tokens); CAPTURE(text.packed_rows);
    testing::Run other(make, dropout, text, "none");
    CHECK(other.rig.loss_of(true) == doctest::Approx(loss).epsilon(1e-6));  // f32 sums over 24 labels in another order
    for (const Unit* unit : padded.rig.model->units()) {
      CAPTURE(unit->name());
      const std::vector<float> a = padded.gradients(*unit), b = other.gradients(*unit);
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

  TEST_CASE("neither packing nor more padding changes loss or gradients, with dropout neither") {
    for (const float dropout : {0.0f, 0.2f}) check_padding(made({dropout, true}), dropout > 0);
  }

  TEST_CASE("the same of T5 and InstructBLIP, whose attention over texts drops probabilities") {
    for (const char* name : {"t5_v11", "t5_instructblip", "instructblip_ordinary"}) {
      CAPTURE(name);
      check_padding([name](const ModelSettings& settings) { return make_model(testing::golden_path(name), settings); }, true);
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
