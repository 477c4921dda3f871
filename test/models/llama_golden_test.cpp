// LLaMA, Mistral and Qwen 2 against Hugging Face transformers, on tiny models whose golden files
// tools/blipft_golden/decoders.py computed in float64. On the CPU, and on the GPU where there is one.
#include "io/json_fields.h"
#include "models/families/families.h"
#include "models/model_golden.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

const std::vector<std::string> kConfigurations = {"llama_mha",   "llama_gqa",     "llama_odd",
                                                 "llama_qwen2", "llama_mistral", "llama_bf16"};
const std::vector<std::vector<std::string>> kFrozen = {
    {"embeddings"}, {"layers"}, {"head"}, {"embeddings", "head"}, {"layers", "head"}, {"embeddings", "layers"}};

void check_everything_in_f32(DeviceKind kind) {
  for (const char* text_padding : {"max", "packed"})
    for (const std::string& name : kConfigurations) check_f32(name, kind, text_padding);
}

// With an own head and with a tied one.
void check_all_frozen(DeviceKind kind) {
  for (const auto& freeze : kFrozen)
    for (const char* name : {"llama_odd", "llama_qwen2"}) check_frozen(name, freeze, kind);
}

void check_all_bf16(DeviceKind kind) {
  for (const char* text_padding : {"max", "packed"})
    for (const Precision precision : {Precision::bf16_true, Precision::bf16_mixed})
      check_bf16("llama_bf16", kind, precision, text_padding);
}

void check_all_checkpointing(DeviceKind kind) {
  for (const char* text_padding : {"max", "packed"})
    for (const char* name : {"llama_mha", "llama_odd", "llama_qwen2"}) check_checkpointing(name, kind, text_padding);
}

}  // namespace

TEST_SUITE("llama golden") {
  TEST_CASE("frequencies of the rotary positions are transformers'") {
    for (const std::string& name : kConfigurations) {
      CAPTURE(name);
      const Golden golden(name);
      const std::string file = golden.directory + "/config.json";
      const DecoderConfig config = read_decoder_config(JsonFields(io::read_json_file(file), file));
      const std::vector<float> expected = golden.floats("frequencies");
      REQUIRE(static_cast<int64_t>(expected.size()) == config.head_size / 2);
      // torch's powers may be one unit in the last place off, ours are rounded from double.
      for (size_t i = 0; i < expected.size(); ++i)
        CHECK(std::fabs(config.rotary.frequencies[i] - expected[i]) <= 2 * 0x1p-23 * expected[i]);
    }
  }
  TEST_CASE("loss, gradients and five AdamW steps agree with transformers in f32 on the CPU") {
    check_everything_in_f32(DeviceKind::cpu);
  }
  TEST_CASE("gradients of what is trained agree with transformers whatever is frozen, on the CPU") {
    check_all_frozen(DeviceKind::cpu);
  }
  TEST_CASE("loss and gradients agree with transformers in bf16 on the CPU") { check_all_bf16(DeviceKind::cpu); }
  TEST_CASE("activation checkpointing changes no bit on the CPU") { check_all_checkpointing(DeviceKind::cpu); }
  TEST_CASE("loss, gradients and five AdamW steps agree with transformers in f32 on the GPU") {
    if (!gpu_or_skip("f32 golden of LLaMA on the GPU")) return;
    check_everything_in_f32(DeviceKind::cuda);
  }
  TEST_CASE("gradients of what is trained agree with transformers whatever is frozen, on the GPU") {
    if (!gpu_or_skip("frozen parts of LLaMA on the GPU")) return;
    check_all_frozen(DeviceKind::cuda);
  }
  TEST_CASE("loss and gradients agree with transformers in bf16 on the GPU") {
    if (!gpu_or_skip("bf16 golden of LLaMA on the GPU")) return;
    check_all_bf16(DeviceKind::cuda);
  }
  TEST_CASE("activation checkpointing changes no bit on the GPU") {
    if (!gpu_or_skip("activation checkpointing of LLaMA on the GPU")) return;
    check_all_checkpointing(DeviceKind::cuda);
  }
}
