// BLIP-2 against Hugging Face transformers, on tiny models whose golden files tools/blipft_golden/blip2.py computed in float64.
// On the CPU, and on the GPU where there is one.
#include "models/model_golden.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

const std::vector<std::vector<std::string>> kFrozen = {
    {"qformer"}, {"vision", "qformer"}, {"vision", "qformer", "language"}, {"language_projection"},
    {"vision", "language_projection", "language"}, {"vision", "qformer", "language_projection"}};

const std::vector<std::string> kConfigurations = {"blip2_ordinary", "blip2_odd", "blip2_untied", "blip2_bf16",
                                                 "blip2_cut"};

}  // namespace

TEST_SUITE("model golden") {
  TEST_CASE("loss, gradients and five AdamW steps agree with transformers in f32 on the CPU") {
    for (const char* text_padding : {"max", "packed"})
      for (const std::string& name : kConfigurations) check_f32(name, DeviceKind::cpu, text_padding);
  }
  TEST_CASE("gradients of what is trained agree with transformers whatever is frozen, on the CPU") {
    for (const auto& freeze : kFrozen) check_frozen("blip2_ordinary", freeze, DeviceKind::cpu);
  }
  TEST_CASE("gradients of what is trained agree with transformers whatever is frozen, on the GPU") {
    if (!gpu_or_skip("frozen parts on the GPU")) return;
    for (const auto& freeze : kFrozen) check_frozen("blip2_ordinary", freeze, DeviceKind::cuda);
  }
  TEST_CASE("loss and gradients agree with transformers in bf16 on the CPU") {
    for (const char* text_padding : {"max", "packed"}) {
      check_bf16("blip2_bf16", DeviceKind::cpu, Precision::bf16_true, text_padding);
      check_bf16("blip2_bf16", DeviceKind::cpu, Precision::bf16_mixed, text_padding);
    }
  }
  TEST_CASE("loss, gradients and five AdamW steps agree with transformers in f32 on the GPU") {
    if (!gpu_or_skip("f32 golden on the GPU")) return;
    for (const char* text_padding : {"max", "packed"})
      for (const std::string& name : kConfigurations) check_f32(name, DeviceKind::cuda, text_padding);
  }
  TEST_CASE("loss and gradients agree with transformers in bf16 on the GPU") {
    if (!gpu_or_skip("bf16 golden on the GPU")) return;
    for (const char* text_padding : {"max", "packed"}) {
      check_bf16("blip2_bf16", DeviceKind::cuda, Precision::bf16_true, text_padding);
      check_bf16("blip2_bf16", DeviceKind::cuda, Precision::bf16_mixed, text_padding);
    }
  }
}
