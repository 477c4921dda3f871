// T5 against Hugging Face transformers, on tiny models whose golden files tools/blipft_golden/t5.py computed in float64; the
// buckets of its relative positions; what of a config.json is refused. On the CPU, and on the GPU where there is one.
#include "models/families/text/t5_config.h"
#include "models/model_golden.h"
#include "support/error_message.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

void check_everything_in_f32(DeviceKind kind) {
  for (const char* text_padding : {"max", "packed"})
    for (const char* name : {"t5_v11", "t5_original"}) check_f32(name, kind, text_padding);
}

void check_all_frozen(DeviceKind kind) {
  for (const char* name : {"t5_v11", "t5_original"})
    for (const std::vector<std::string>& frozen :
         {std::vector<std::string>{"encoder"}, {"embeddings", "encoder"}, {"decoder", "head"}, {"embeddings"}})
      check_frozen(name, frozen, kind);
}

void check_bf16_both(DeviceKind kind) {
  for (const char* text_padding : {"max", "packed"})
    for (const Precision precision : {Precision::bf16_true, Precision::bf16_mixed})
      check_bf16("t5_erf_bf16", kind, precision, text_padding);
}

// Returns the error of T5Config::read for {"decoder_start_token_id": 0, `more`}.
std::string refusal(const std::string& more) {
  const nlohmann::json config = nlohmann::json::parse("{\"decoder_start_token_id\": 0, " + more + "}");
  return message_of([&] { T5Config::read(JsonFields(config, "config.json")); });
}

}  // namespace

TEST_SUITE("t5 golden") {
  TEST_CASE("loss, gradients and five AdamW steps agree with transformers in f32 on the CPU") {
    check_everything_in_f32(DeviceKind::cpu);
  }
  TEST_CASE("gradients of what is trained agree with transformers whatever is frozen, on the CPU") {
    check_all_frozen(DeviceKind::cpu);
  }
  TEST_CASE("loss and gradients agree with transformers in bf16 on the CPU") { check_bf16_both(DeviceKind::cpu); }
  TEST_CASE("activation checkpointing changes no bit on the CPU") {
    for (const char* name : {"t5_v11", "t5_original"}) check_checkpointing(name, DeviceKind::cpu, "packed");
  }
  TEST_CASE("loss, gradients and five AdamW steps agree with transformers in f32 on the GPU") {
    if (gpu_or_skip("f32 golden of T5 on the GPU")) check_everything_in_f32(DeviceKind::cuda);
  }
  TEST_CASE("gradients of what is trained agree with transformers whatever is frozen, on the GPU") {
    if (gpu_or_skip("frozen parts of T5 on the GPU")) check_all_frozen(DeviceKind::cuda);
  }
  TEST_CASE("loss and gradients agree with transformers in bf16 on the GPU") {
    if (gpu_or_skip("bf16 golden of T5 on the GPU")) check_bf16_both(DeviceKind::cuda);
  }

  // The first distances of T5Attention._relative_position_bucket, which torch and numpy give alike in f32 and in float64.
  TEST_CASE("buckets begin where transformers' begin") {
    const std::vector<int32_t> encoder = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
    const std::vector<int32_t> decoder = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                          16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
    for (const bool both_ways : {true, false}) {
      const RelativeBias rule = relative_rule({}, both_ways);
      const std::vector<int32_t>& expected = both_ways ? encoder : decoder;
      CHECK(std::vector<int32_t>(rule.first, rule.first + rule.distances) == expected);
      CHECK(rule.buckets() == 32);
      CHECK(rule.scores.behind == expected.back());
      CHECK(rule.scores.ahead == (both_ways ? expected.back() : 0));
    }
  }

  TEST_CASE("what a config.json asks for and is not done is refused by its key") {
    CHECK(refusal("\"d_ff\": 64").empty());
    const auto refused = [](const std::string& more, const std::string& expected) {
      CHECK_MESSAGE(refusal(more).find(expected) != std::string::npos, refusal(more));
    };
    refused("\"feed_forward_proj\": \"gated-tanh\"", "config.json: feed_forward_proj: found \"gated-tanh\", supported are");
    refused("\"feed_forward_proj\": \"gelu_new\"", "feed_forward_proj: found \"gelu_new\"");
    refused("\"dense_act_fn\": \"tanh\", \"feed_forward_proj\": \"relu\"", "dense_act_fn: found \"tanh\"");
    refused("\"relative_attention_num_buckets\": 30", "relative_attention_num_buckets: found 30");
    refused("\"relative_attention_max_distance\": 16", "relative_attention_max_distance: found 16, expected more than 16");
    refused("\"is_encoder_decoder\": false", "is_encoder_decoder: found false");
    refused("\"d_kv\": 257", "d_kv: found 257");
    refused("\"quantization_config\": {}", "quantization_config");
    const nlohmann::json empty = nlohmann::json::object();
    const std::string message = message_of([&] { T5Config::read(JsonFields(empty, "config.json")); });
    CHECK_MESSAGE(message.find("config.json: decoder_start_token_id: the file has no such key") == 0, message);
  }
}
