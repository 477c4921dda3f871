// InstructBLIP against Hugging Face transformers, on tiny models whose golden files tools/blipft_golden/instructblip.py, and with a
// T5 tools/blipft_golden/t5.py, computed in float64. On the CPU, and on the GPU where there is one.
#include "models/model_golden.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

const std::vector<std::vector<std::string>> kFrozen = {
    {"vision"}, {"vision", "language"}, {"vision", "qformer"}, {"qformer", "language_projection"},
    {"language_projection"}};

const std::vector<std::string> kConfigurations = {"instructblip_ordinary", "instructblip_odd", "instructblip_bf16",
                                                 "t5_instructblip"};

}  // namespace

TEST_SUITE("instructblip golden") {
  TEST_CASE("loss, gradients and five AdamW steps of InstructBLIP agree with transformers in f32 on the CPU") {
    for (const char* text_padding : {"max", "packed"})
      for (const std::string& name : kConfigurations) check_f32(name, DeviceKind::cpu, text_padding);
  }
  TEST_CASE("gradients of what InstructBLIP trains agree with transformers whatever is frozen, on the CPU") {
    for (const char* name : {"instructblip_ordinary", "t5_instructblip"})
      for (const auto& freeze : kFrozen) check_frozen(name, freeze, DeviceKind::cpu);
  }
  TEST_CASE("InstructBLIP's layers that recompute give the same bits on the CPU") {
    for (const char* text_padding : {"max", "packed"})
      for (const std::string& name : kConfigurations) check_checkpointing(name, DeviceKind::cpu, text_padding);
  }
  TEST_CASE("loss and gradients of InstructBLIP agree with transformers in bf16 on the CPU") {
    for (const char* text_padding : {"max", "packed"})
      check_bf16("instructblip_bf16", DeviceKind::cpu, Precision::bf16_true, text_padding);
  }
  TEST_CASE("InstructBLIP agrees with transformers on the GPU") {
    if (!gpu_or_skip("InstructBLIP on the GPU")) return;
    for (const char* text_padding : {"max", "packed"}) {
      for (const std::string& name : kConfigurations) check_f32(name, DeviceKind::cuda, text_padding);
      check_bf16("instructblip_bf16", DeviceKind::cuda, Precision::bf16_true, text_padding);
      check_checkpointing("instructblip_ordinary", DeviceKind::cuda, text_padding);
    }
  }
}
