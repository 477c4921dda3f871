// Qwen 2, with biases of q, k and v, and Qwen 3, with norms of each head of queries and keys. Later layers may have a
// window.
#include "models/families/decoder/decoder_config.h"
#include "models/families/families.h"

namespace blipft {

namespace {

void read_windows(const JsonFields& fields, DecoderConfig& config) {
  const int64_t window = fields.get<bool>("use_sliding_window", false) ? read_window(fields, 4096) : 0;
  const int64_t first = fields.get<int64_t>("max_window_layers", 28);
  set_windows(config, window, read_sliding(fields, config.layers, [&](int64_t i) { return i >= first; }));
}

DecoderConfig read_qwen2(const JsonFields& fields) {
  DecoderConfig config{.model_type = "qwen2"};
  read_sizes(fields, {151936, 4096, 22016, 32, 32, 32, 0, 32768, 1e-6f}, config);
  config.activation = read_activation(fields, "hidden_act", "silu");
  config.qkv_bias = true;
  read_windows(fields, config);
  read_shared_rotary(fields, config);
  return config;
}

DecoderConfig read_qwen3(const JsonFields& fields) {
  DecoderConfig config{.model_type = "qwen3"};
  read_sizes(fields, {151936, 4096, 22016, 32, 32, 32, 128, 32768, 1e-6f}, config);
  config.head_norms = DecoderConfig::HeadNorms::each;
  config.activation = read_activation(fields, "hidden_act", "silu");
  read_attention_bias(fields, config);
  read_windows(fields, config);
  read_shared_rotary(fields, config);
  return config;
}

}  // namespace

Family families::qwen2() {
  Family family{.spec = decoder_spec("qwen2", "Qwen2ForCausalLM"), .read_decoder = read_qwen2};
  family.spec.tokenizer = {"Qwen2Tokenizer", true};
  return family;
}

Family families::qwen3() {
  Family family{.spec = decoder_spec("qwen3", "Qwen3ForCausalLM"), .read_decoder = read_qwen3};
  family.spec.tokenizer = {"Qwen2Tokenizer"};
  return family;
}

}  // namespace blipft
