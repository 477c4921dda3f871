// Reads config.json of text decoders; see decoder_config.h.
#include "models/families/decoder/decoder_config.h"

#include "models/config_checks.h"
#include "models/families/decoder/rotary_config.h"

namespace blipft {

namespace {

void read_heads(const JsonFields& fields, const DecoderDefaults& defaults, DecoderConfig& config) {
  config.heads = fields.positive("num_attention_heads", defaults.heads);
  config.kv_heads = fields.positive("num_key_value_heads", defaults.kv_heads > 0 ? defaults.kv_heads : config.heads);
  // null means the number of heads; an absent key means the default.
  if (fields.is_null("num_key_value_heads")) config.kv_heads = config.heads;
  BLIPFT_USER_CHECK(config.heads % config.kv_heads == 0, fields.file(), ": ", fields.prefix(),
                    "num_key_value_heads: found ", config.kv_heads, ", expected a divisor of num_attention_heads, ",
                    config.heads);
  const bool given = fields.has("head_dim") || defaults.head_size > 0;
  BLIPFT_USER_CHECK(given || config.hidden % config.heads == 0, fields.file(), ": ", fields.prefix(),
                    "num_attention_heads: ", config.heads, " heads do not divide the hidden size ", config.hidden,
                    ", and there is no head_dim");
  config.head_size =
      fields.positive("head_dim", defaults.head_size > 0 ? defaults.head_size : config.hidden / config.heads);
  BLIPFT_USER_CHECK(config.head_size % 2 == 0 && config.head_size <= 2 * Rotary::kMaxFrequencies, fields.file(), ": ",
                    fields.prefix(), given ? "head_dim" : "num_attention_heads", ": found heads of size ",
                    config.head_size, ", supported are even sizes of at most ", 2 * Rotary::kMaxFrequencies);
}

}  // namespace

void read_sizes(const JsonFields& fields, const DecoderDefaults& defaults, DecoderConfig& config) {
  config.vocabulary = fields.rows("vocab_size", defaults.vocabulary);
  config.hidden = fields.positive("hidden_size", defaults.hidden);
  config.inner = fields.positive("intermediate_size", defaults.inner);
  config.layers = fields.layers("num_hidden_layers", defaults.layers);
  config.norm_eps = fields.epsilon("rms_norm_eps", defaults.norm_eps);
  config.init_std = fields.deviation("initializer_range", config.init_std);
  config.tied = fields.get<bool>("tie_word_embeddings", defaults.tied);
  config.padding_id = fields.get<int64_t>("pad_token_id", fields.is_null("pad_token_id") ? -1 : defaults.padding_id);
  // torch.nn.Embedding counts a negative padding_idx, which the first LLaMA configurations have, from the end.
  if (fields.has("pad_token_id") && config.padding_id < 0) config.padding_id += config.vocabulary;
  config.attention_dropout = fields.probability("attention_dropout", 0);
  config.max_text_tokens = fields.rows("max_position_embeddings", defaults.positions);
  fields.only<bool>("is_causal", true);
  refuse_quantised(fields);
  fields.only<int64_t>("pretraining_tp", 1);
  read_heads(fields, defaults, config);
  config.kinds.assign(static_cast<size_t>(config.layers), {});
}

GateActivation read_activation(const JsonFields& fields, const std::string& key, const char* fallback) {
  static const std::pair<const char*, GateActivation> kNames[] = {
      {"silu", GateActivation::silu},           {"swish", GateActivation::silu},
      {"gelu", GateActivation::gelu},           {"gelu_pytorch_tanh", GateActivation::gelu_tanh},
      {"gelu_new", GateActivation::gelu_tanh},  {"relu", GateActivation::relu}};
  const std::string found = fields.get<std::string>(key, fallback);
  std::string known;
  for (const auto& [name, activation] : kNames) {
    if (found == name) return activation;
    known += concat(known.empty() ? "" : ", ", "\"", name, "\"");
  }
  throw UserError(concat(fields.file(), ": ", fields.prefix(), key, ": found \"", brief(found), "\", supported are ",
      known));
}

std::vector<bool> read_sliding(const JsonFields& fields, int64_t layers, const std::function<bool(int64_t)>& by_default) {
  std::vector<bool> sliding;
  if (!fields.has("layer_types")) {
    for (int64_t i = 0; i < layers; ++i) sliding.push_back(by_default(i));
    return sliding;
  }
  const auto types = fields.get<std::vector<std::string>>("layer_types", {});
  BLIPFT_USER_CHECK(static_cast<int64_t>(types.size()) == layers, fields.file(), ": ", fields.prefix(),
                    "layer_types: found ", types.size(), " types, expected one for each of the ", layers, " layers");
  for (const std::string& type : types) {
    BLIPFT_USER_CHECK(type == "full_attention" || type == "sliding_attention", fields.file(), ": ", fields.prefix(),
                      "layer_types: found \"", brief(type),
                      "\", supported are \"full_attention\" and \"sliding_attention\"");
    sliding.push_back(type == "sliding_attention");
  }
  return sliding;
}

void read_attention_bias(const JsonFields& fields, DecoderConfig& config) {
  config.qkv_bias = config.output_bias = fields.get<bool>("attention_bias", false);
}

int64_t read_window(const JsonFields& fields, int64_t absent) {
  const char* const key = "sliding_window";
  return fields.is_null(key) ? 0 : fields.has(key) ? fields.rows(key, 1) : absent;
}

void set_windows(DecoderConfig& config, int64_t window, const std::vector<bool>& sliding) {
  for (size_t i = 0; i < config.kinds.size(); ++i) config.kinds[i].window = sliding.at(i) ? window : 0;
}

void read_shared_rotary(const JsonFields& fields, DecoderConfig& config, double base, double rotated_part) {
  const JsonFields rope = shared_rope(fields, config.model_type);
  config.rotary = read_rotary({.fields = fields, .rope = rope, .base = base, .head_size = config.head_size,
                               .positions = config.max_text_tokens, .rotated_part = rotated_part},
                              config.max_text_tokens);
}

}  // namespace blipft
