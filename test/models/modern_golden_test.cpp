// LLaMA's younger relatives and Gemma against Hugging Face transformers, on tiny models whose golden files
// tools/blipft_golden/decoders.py computed in float64. On the CPU, and on the GPU where there is one.
#include "models/model_golden.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

// Each with what LLaMA has not: see tools/blipft_golden/decoders.py.
const std::vector<std::string> kConfigurations = {"modern_qwen3", "modern_smollm3", "modern_olmo2",
                                                 "modern_phi3",  "modern_gemma2",  "modern_gemma3",
                                                 "modern_granite", "modern_glm4"};
const std::vector<std::string> kBf16 = {"modern_qwen3_bf16", "modern_gemma3_bf16", "modern_granite_bf16"};

void check_everything_in_f32(DeviceKind kind) {
  for (const char* text_padding : {"max", "packed"})
    for (const std::string& name : kConfigurations) check_f32(name, kind, text_padding);
}

void check_all_frozen(DeviceKind kind) {
  for (const std::string& name : kConfigurations) {
    check_frozen(name, {"layers", "head"}, kind);  // backward through layers without their own gradients
    check_frozen(name, {"embeddings"}, kind);
  }
}

void check_all_bf16(DeviceKind kind) {
  for (const char* text_padding : {"max", "packed"})
    for (const Precision precision : {Precision::bf16_true, Precision::bf16_mixed})
      for (const std::string& name : kBf16) check_bf16(name, kind, precision, text_padding);
}

void check_all_checkpointing(DeviceKind kind) {
  for (const std::string& name : kConfigurations) check_checkpointing(name, kind, "packed");
}

}  // namespace

TEST_SUITE("modern golden") {
  TEST_CASE("loss, gradients and five AdamW steps agree with transformers in f32 on the CPU") {
    check_everything_in_f32(DeviceKind::cpu);
  }
  TEST_CASE("gradients of what is trained agree with transformers whatever is frozen, on the CPU") {
    check_all_frozen(DeviceKind::cpu);
  }
  TEST_CASE("loss and gradients agree with transformers in bf16 on the CPU") { check_all_bf16(DeviceKind::cpu); }
  TEST_CASE("activation checkpointing changes no bit on the CPU") { check_all_checkpointing(DeviceKind::cpu); }
  TEST_CASE("loss, gradients and five AdamW steps agree with transformers in f32 on the GPU") {
    if (!gpu_or_skip("f32 golden of the younger families on the GPU")) return;
    check_everything_in_f32(DeviceKind::cuda);
  }
  TEST_CASE("gradients of what is trained agree with transformers whatever is frozen, on the GPU") {
    if (!gpu_or_skip("frozen parts of the younger families on the GPU")) return;
    check_all_frozen(DeviceKind::cuda);
  }
  TEST_CASE("loss and gradients agree with transformers in bf16 on the GPU") {
    if (!gpu_or_skip("bf16 golden of the younger families on the GPU")) return;
    check_all_bf16(DeviceKind::cuda);
  }
  TEST_CASE("activation checkpointing changes no bit on the GPU") {
    if (!gpu_or_skip("activation checkpointing of the younger families on the GPU")) return;
    check_all_checkpointing(DeviceKind::cuda);
  }
}
