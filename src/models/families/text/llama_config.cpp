// Reading config.json of LLaMA and its relatives. Defaults are those of transformers' configuration classes.
#include "models/families/text/llama_config.h"

#include "models/config_checks.h"
#include "models/families/text/rotary_config.h"

namespace blipft {

namespace {

using Norms = DecoderConfig::Norms;
using HeadNorms = DecoderConfig::HeadNorms;
using LayerKind = DecoderConfig::LayerKind;

/// Keys for biases that a family's file may have.
enum class Biases { none, qkv, attention, all };  // always of q, k and v; attention_bias; mlp_bias beside it

struct Family {
  const char* model_type;
  DecoderDefaults sizes;
  Biases biases = Biases::none;
  HeadNorms head_norms = HeadNorms::none;
  Norms norms = Norms::before;
  RmsForm norm_form = {};
  bool fused = false;
  double rope_base = 10000;
};

const Family kFamilies[] = {
    {"llama", {32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6f}, Biases::all},
    {"mistral", {32000, 4096, 14336, 32, 32, 8, 0, 131072, 1e-6f}},
    {"qwen2", {151936, 4096, 22016, 32, 32, 32, 0, 32768, 1e-6f}, Biases::qkv},
    {"qwen3", {151936, 4096, 22016, 32, 32, 32, 128, 32768, 1e-6f}, Biases::attention, HeadNorms::each},
    {.model_type = "smollm3", .sizes = {128256, 2048, 11008, 36, 16, 4, 0, 32768, 1e-6f, true, 128004},
     .biases = Biases::all, .rope_base = 2e6},
    {.model_type = "phi3", .sizes = {32064, 3072, 8192, 32, 32, 0, 0, 4096, 1e-5f, false, 32000}, .fused = true},
    {"olmo2", {50304, 4096, 11008, 32, 32, 0, 0, 2048, 1e-5f, false, 1}, Biases::attention, HeadNorms::together,
     Norms::after, {.offset = 0, .rounds_once = true}}};

const Family& family_of(const JsonFields& fields) {
  const std::string type = fields.get<std::string>("model_type", "llama");
  std::string known;
  for (const Family& family : kFamilies) {
    if (type == family.model_type) return family;
    known += concat(known.empty() ? "" : ", ", family.model_type);
  }
  throw UserError(concat(fields.file(), ": model_type: found \"", brief(type), "\", supported are ", known));
}

void read_heads(const JsonFields& fields, const DecoderDefaults& defaults, DecoderConfig& config) {
  config.heads = fields.positive("num_attention_heads", defaults.heads);
  config.kv_heads = fields.positive("num_key_value_heads", defaults.kv_heads > 0 ? defaults.kv_heads : config.heads);
  // null means as many as heads, an absent key the default.
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
  BLIPFT_USER_CHECK(config.head_size % 2 == 0 && config.head_size <= 2 * Rotary::kMostFrequencies, fields.file(), ": ",
                    fields.prefix(), given ? "head_dim" : "num_attention_heads", ": found heads of size ",
                    config.head_size, ", supported are even sizes of at most ", 2 * Rotary::kMostFrequencies);
}

void read_biases(const JsonFields& fields, Biases biases, DecoderConfig& config) {
  config.qkv_bias = biases == Biases::qkv;
  if (biases == Biases::attention || biases == Biases::all)
    config.qkv_bias = config.output_bias = fields.get<bool>("attention_bias", false);
  if (biases == Biases::all) config.mlp_bias = fields.get<bool>("mlp_bias", false);
}

/// Windows of each layer, and which layers turn.
void read_kinds(const JsonFields& fields, const std::string& type, DecoderConfig& config) {
  const auto number = [&](const char* key, int64_t absent) {
    return fields.is_null(key) ? 0 : fields.has(key) ? fields.rows(key, 1) : absent;
  };
  config.kinds.assign(static_cast<size_t>(config.layers), {});
  std::vector<bool> sliding(config.kinds.size(), false);
  int64_t window = 0;
  if (type == "mistral" || type == "phi3") {
    window = number("sliding_window", type == "mistral" ? 4096 : 0);
    sliding.assign(config.kinds.size(), true);
  } else if (type == "qwen2" || type == "qwen3") {
    if (fields.get<bool>("use_sliding_window", false)) window = number("sliding_window", 4096);
    const int64_t first = fields.get<int64_t>("max_window_layers", 28);
    sliding = read_sliding(fields, config.layers, [&](int64_t i) { return i >= first; });
  } else if (type == "smollm3") {
    const int64_t interval = fields.positive("no_rope_layer_interval", 4);
    const auto turns = fields.get<std::vector<int64_t>>("no_rope_layers", {});  // 1: has rotary positions
    const bool listed = fields.has("no_rope_layers");
    BLIPFT_USER_CHECK(!listed || turns.size() == config.kinds.size(), fields.file(), ": ", fields.prefix(),
                      "no_rope_layers: found ", turns.size(), " numbers, expected one for each of the ", config.layers,
                      " layers");
    for (size_t i = 0; i < config.kinds.size(); ++i) {
      const bool turned = listed ? turns[i] != 0 : (static_cast<int64_t>(i) + 1) % interval != 0;
      config.kinds[i].turns = turned ? LayerKind::Turns::global : LayerKind::Turns::none;
    }
    window = number("sliding_window", 0);
    const bool on = fields.get<bool>("use_sliding_window", false);
    sliding = read_sliding(fields, config.layers, [&](int64_t i) {
      return on && config.kinds[static_cast<size_t>(i)].turns == LayerKind::Turns::none;
    });
  }
  for (size_t i = 0; i < config.kinds.size(); ++i) config.kinds[i].window = sliding[i] ? window : 0;
}

void read_rotary(const JsonFields& fields, const Family& family, DecoderConfig& config) {
  const JsonFields rope = fields.section(rope_key(fields));
  for (const char* layers : {"full_attention", "sliding_attention"})
    BLIPFT_USER_CHECK(!rope.has(layers), rope.file(), ": ", rope.prefix(), layers,
                      ": layers with rotary positions of their own are not supported in a ", family.model_type);
  RotarySource source{.fields = fields, .rope = rope, .base = family.rope_base, .head_size = config.head_size,
                      .positions = fields.rows("max_position_embeddings", family.sizes.positions)};
  if (family.fused) {
    source.phi = true;
    source.original_positions = fields.rows("original_max_position_embeddings", 4096);
  }
  config.rotary = read_rotary(source, config.max_text_tokens);
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

std::vector<bool> read_sliding(const JsonFields& fields, int64_t layers, const std::function<bool(int64_t)>& usual) {
  std::vector<bool> sliding;
  if (!fields.has("layer_types")) {
    for (int64_t i = 0; i < layers; ++i) sliding.push_back(usual(i));
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

LlamaConfig LlamaConfig::read(const std::string& file) {
  const nlohmann::json root = io::read_json_file(file);
  return read(JsonFields(root, file));
}

LlamaConfig LlamaConfig::read(const JsonFields& fields) {
  const Family& family = family_of(fields);
  LlamaConfig config;
  config.model_type = family.model_type;
  read_sizes(fields, family.sizes, config);
  config.head_norms = family.head_norms;
  config.norms = family.norms;
  config.norm_form = family.norm_form;
  config.fused = family.fused;
  config.activation = read_activation(fields, "hidden_act", "silu");
  read_biases(fields, family.biases, config);
  if (family.fused) config.branch_dropout = fields.probability("resid_pdrop", 0);
  read_kinds(fields, family.model_type, config);
  read_rotary(fields, family, config);
  return config;
}

}  // namespace blipft
