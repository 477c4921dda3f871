// Reading config.json of LLaMA, Mistral and Qwen 2. Defaults are those of transformers' configuration classes.
#include "models/families/llama_config.h"

#include <cmath>

#include "models/json_fields.h"

namespace blipft {

namespace {

constexpr double kMostScaling = 1e6;         // of positions

struct Defaults {
  const char* model_type;
  int64_t vocabulary, inner, kv_heads, positions;  // kv_heads 0: as many as heads
  bool qkv_bias;
};

constexpr Defaults kDefaults[] = {{"llama", 32000, 11008, 0, 2048, false},
                                  {"mistral", 32000, 14336, 8, 131072, false},
                                  {"qwen2", 151936, 22016, 32, 32768, true}};

const Defaults& defaults_of(const JsonFields& fields) {
  const std::string type = fields.get<std::string>("model_type", "llama");
  for (const Defaults& defaults : kDefaults)
    if (type == defaults.model_type) return defaults;
  throw UserError(concat(fields.file(), ": model_type: found \"", brief(type),
                         "\", supported are llama, mistral, qwen2"));
}

void read_heads(const JsonFields& fields, const Defaults& defaults, LlamaConfig& config) {
  config.heads = fields.positive("num_attention_heads", 32);
  config.kv_heads = fields.positive("num_key_value_heads", defaults.kv_heads > 0 ? defaults.kv_heads : config.heads);
  BLIPFT_USER_CHECK(config.heads % config.kv_heads == 0, fields.file(), ": ", fields.prefix(),
                    "num_key_value_heads: found ", config.kv_heads, ", expected a divisor of num_attention_heads, ",
                    config.heads);
  const bool given = fields.has("head_dim");
  BLIPFT_USER_CHECK(given || config.hidden % config.heads == 0, fields.file(), ": ", fields.prefix(),
                    "num_attention_heads: ", config.heads, " heads do not divide the hidden size ", config.hidden,
                    ", and there is no head_dim");
  config.head_size = fields.positive("head_dim", config.hidden / config.heads);
  BLIPFT_USER_CHECK(config.head_size % 2 == 0 && config.head_size <= 2 * Rotary::kMostFrequencies, fields.file(), ": ",
                    fields.prefix(), given ? "head_dim" : "num_attention_heads", ": found heads of size ",
                    config.head_size, ", supported are even sizes of at most ", 2 * Rotary::kMostFrequencies);
}

/// The length of the sliding window of any layer, or 0.
int64_t sliding_window(const JsonFields& fields, const Defaults& defaults, int64_t layers) {
  const std::string type = defaults.model_type;
  if (type == "llama") return 0;
  if (type == "mistral") {
    return fields.is_null("sliding_window") ? 0 : fields.rows("sliding_window", 4096);
  }
  if (!fields.get<bool>("use_sliding_window", false) || fields.is_null("sliding_window")) return 0;
  const int64_t window = fields.rows("sliding_window", 4096);
  if (fields.has("layer_types")) {
    for (const std::string& layer : fields.get<std::vector<std::string>>("layer_types", {}))
      if (layer == "sliding_attention") return window;
    return 0;
  }
  return fields.get<int64_t>("max_window_layers", 28) < layers ? window : 0;
}

void read_lengths(const JsonFields& fields, const Defaults& defaults, LlamaConfig& config) {
  config.max_text_tokens = fields.rows("max_position_embeddings", defaults.positions);
  config.sliding_window = sliding_window(fields, defaults, config.layers);
}

// Long wavelengths are stretched, short ones stay, with a smooth passage between: transformers'
// _compute_llama3_parameters, operation by operation in f32.
void scale_llama3(const JsonFields& fields, const JsonFields& rope, int64_t positions, LlamaConfig& config) {
  const auto required = [&](const char* key) {
    BLIPFT_USER_CHECK(rope.has(key), rope.file(), ": ", rope.prefix(), key, ": is missing, llama3 scaling needs it");
    return rope.get<double>(key, 0);
  };
  const double factor = required("factor"), low = required("low_freq_factor"), high = required("high_freq_factor");
  // transformers prefers the one that stands beside.
  const auto length = static_cast<double>(fields.has("original_max_position_embeddings")
                                              ? fields.rows("original_max_position_embeddings", positions)
                                              : rope.rows("original_max_position_embeddings", positions));
  BLIPFT_USER_CHECK(factor >= 1 && factor <= kMostScaling && low >= 1 / kMostScaling && high > low &&
                        high <= kMostScaling,
                    rope.file(), ": ", rope.prefix(), "factor ", factor,
                    ", low_freq_factor ", low, ", high_freq_factor ", high,
                    ": expected a factor of at least 1 and 0 < low_freq_factor < high_freq_factor, all at most ",
                    kMostScaling);
  const auto f = [](double x) { return static_cast<float>(x); };
  for (int64_t i = 0; i < config.head_size / 2; ++i) {
    float& frequency = config.frequencies[static_cast<size_t>(i)];
    const float wavelength = 1 / frequency * f(2 * M_PI);  // a number over a tensor is this in PyTorch
    const float stretched = wavelength > f(length / low) ? frequency / f(factor) : frequency;
    const float smooth = (1 / wavelength * f(length) - f(low)) / f(high - low);
    const float between = (1 - smooth) * stretched / f(factor) + smooth * stretched;
    const bool medium = !(wavelength < f(length / high)) && !(wavelength > f(length / low));
    frequency = medium ? between : stretched;
  }
}

// transformers 5 writes rope_parameters, with the base in it; before it, rope_scaling stood beside rope_theta.
void read_rotary(const JsonFields& fields, const Defaults& defaults, LlamaConfig& config) {
  const bool old = fields.has("rope_scaling") && !fields.section("rope_scaling").empty();
  const JsonFields rope = fields.section(old ? "rope_scaling" : "rope_parameters");
  for (const char* layers : {"full_attention", "sliding_attention"})
    BLIPFT_USER_CHECK(!rope.has(layers), rope.file(), ": ", rope.prefix(), layers,
                      ": layers with rotary positions of their own are not supported");
  const std::string type = rope.get<std::string>("rope_type", rope.get<std::string>("type", "default"));
  BLIPFT_USER_CHECK(type == "default" || type == "linear" || type == "llama3", rope.file(), ": ", rope.prefix(),
                    rope.has("rope_type") ? "rope_type" : "type", ": found \"", brief(type),
                    "\", supported are \"default\", \"linear\" and \"llama3\"");
  const double base = rope.get<float>("rope_theta", fields.get<float>("rope_theta", 10000.0f));
  BLIPFT_USER_CHECK(base >= 1e-6 && base <= 1e30, fields.file(), ": ",
                    rope.has("rope_theta") ? rope.prefix() : fields.prefix(),
                    "rope_theta: found ", base, ", expected a positive number, of common size");
  rope.only<double>("partial_rotary_factor", 1.0);
  fields.only<double>("partial_rotary_factor", 1.0);
  const auto half = config.head_size / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_size);
    const auto power = static_cast<float>(std::pow(static_cast<double>(static_cast<float>(base)), double{exponent}));
    config.frequencies[static_cast<size_t>(i)] = 1.0f / power;
  }
  if (type == "llama3") scale_llama3(fields, rope, fields.rows("max_position_embeddings", defaults.positions), config);
  if (type != "linear") return;
  const double factor = rope.get<double>("factor", 0);
  BLIPFT_USER_CHECK(factor >= 1 && factor <= kMostScaling, rope.file(), ": ", rope.prefix(), "factor: found ",
                    rope.has("factor") ? concat(factor) : "nothing", ", linear scaling expects a number from 1 to ",
                    kMostScaling);
  for (float& frequency : config.frequencies) frequency /= static_cast<float>(factor);
}

}  // namespace

LlamaConfig LlamaConfig::read(const std::string& file) {
  const nlohmann::json root = io::read_json_file(file);
  const JsonFields fields(root, file);
  const Defaults& defaults = defaults_of(fields);
  LlamaConfig config;
  config.model_type = defaults.model_type;
  config.vocabulary = fields.rows("vocab_size", defaults.vocabulary);
  config.hidden = fields.positive("hidden_size", 4096);
  config.inner = fields.positive("intermediate_size", defaults.inner);
  config.layers = fields.layers("num_hidden_layers", 32);
  config.norm_eps = fields.epsilon("rms_norm_eps", config.norm_eps);
  config.init_std = fields.deviation("initializer_range", config.init_std);
  config.tied = fields.get<bool>("tie_word_embeddings", false);
  config.padding_id = fields.get<int64_t>("pad_token_id", -1);
  // torch.nn.Embedding counts a negative padding_idx, which the first LLaMA configurations have, from the end.
  if (fields.has("pad_token_id") && config.padding_id < 0) config.padding_id += config.vocabulary;
  config.qkv_bias = defaults.qkv_bias;
  if (config.model_type == "llama") {
    config.qkv_bias = config.output_bias = fields.get<bool>("attention_bias", false);
    config.mlp_bias = fields.get<bool>("mlp_bias", false);
  }
  const std::string activation = fields.get<std::string>("hidden_act", "silu");
  if (activation != "swish") fields.only<std::string>("hidden_act", "silu");  // two names of one function
  config.attention_dropout = fields.probability("attention_dropout", 0);
  fields.only<bool>("is_causal", true);
  fields.refuse_quantised();
  fields.only<int64_t>("pretraining_tp", 1);
  read_heads(fields, defaults, config);
  read_lengths(fields, defaults, config);
  read_rotary(fields, defaults, config);
  return config;
}

}  // namespace blipft
