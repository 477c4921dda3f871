// Reading config.json of Gemma 2 and 3. Defaults are those of transformers' configuration classes.
#include "models/families/text/gemma_config.h"

#include <cmath>

#include "io/json_fields.h"
#include "models/families/text/llama_config.h"
#include "models/families/text/rotary_config.h"

namespace blipft {

namespace {

using LayerKind = DecoderConfig::LayerKind;

constexpr float kMostCap = 1e6f;

constexpr DecoderDefaults kGemma2{256000, 2304, 9216, 26, 8, 4, 256, 8192, 1e-6f, true, 0};
constexpr DecoderDefaults kGemma3{262208, 2304, 9216, 26, 8, 4, 256, 131072, 1e-6f, true, 0};

/// A soft cap; null: none.
float read_cap(const JsonFields& fields, const char* key, float absent) {
  if (fields.is_null(key) || (!fields.has(key) && absent == 0)) return 0;
  const float cap = fields.get<float>(key, absent);
  BLIPFT_USER_CHECK(cap > 0 && cap <= kMostCap, fields.file(), ": ", fields.prefix(), key, ": found ", cap,
                    ", expected a positive number, at most ", kMostCap, ", or null");
  return cap;
}

void read_windows(const JsonFields& fields, int64_t pattern, DecoderConfig& config) {
  const int64_t window = fields.is_null("sliding_window") ? 0 : fields.rows("sliding_window", 4096);
  const std::vector<bool> sliding =
      read_sliding(fields, config.layers, [&](int64_t i) { return (i + 1) % pattern != 0; });
  for (const bool slides : sliding) config.kinds.push_back({.window = slides ? window : 0});
}

/// Gemma 3 has two of them: layers with a window turn faster. An old file's scaling is of the others alone.
void read_both_rotaries(const JsonFields& fields, DecoderConfig& config) {
  const JsonFields nested = fields.section("rope_parameters");
  for (const char* key : {"rope_type", "rope_theta", "factor"})
    BLIPFT_USER_CHECK(!nested.has(key), fields.file(), ": ", nested.prefix(), key, ": found ",
                      "one description for all layers, expected one under full_attention and one under ",
                      "sliding_attention");
  const bool old = fields.has("rope_scaling") && !fields.section("rope_scaling").empty();
  const JsonFields full = old ? fields.section("rope_scaling") : nested.section("full_attention");
  const JsonFields local = nested.section("sliding_attention");
  RotarySource source{.fields = fields, .rope = full, .base = 1e6, .head_size = config.head_size,
                      .positions = config.max_text_tokens};
  config.rotary = read_rotary(source, config.max_text_tokens);
  const float base = fields.get<float>("rope_local_base_freq", 10000.0f);
  const RotarySource of_local{.fields = fields, .rope = local, .base = static_cast<double>(base), .base_beside = false,
                              .head_size = config.head_size, .positions = config.max_text_tokens};
  config.local_rotary = read_rotary(of_local, config.max_text_tokens);
  const auto sliding = read_sliding(fields, config.layers, [&](int64_t i) {
    return (i + 1) % fields.positive("sliding_window_pattern", 6) != 0;
  });
  for (size_t i = 0; i < sliding.size(); ++i)
    config.kinds[i].turns = sliding[i] ? LayerKind::Turns::local : LayerKind::Turns::global;
}

}  // namespace

GemmaConfig GemmaConfig::read(const std::string& file) {
  const nlohmann::json root = io::read_json_file(file);
  const JsonFields fields(root, file);
  const std::string type = fields.get<std::string>("model_type", "");
  if (type != "gemma3") return read(fields);
  const JsonFields texts = fields.section("text_config");
  BLIPFT_USER_CHECK(!texts.empty(), file, ": text_config: found nothing, expected the sizes of the language model of a gemma3");
  GemmaConfig config = read(texts);
  BLIPFT_USER_CHECK(config.model_type == "gemma3_text", file, ": text_config.model_type: found \"", brief(config.model_type),
                    "\", supported is gemma3_text");
  config.within = true;
  config.logit_cap = 0;                    // which transformers does not apply here
  // transformers goes by the outer one.
  config.tied = fields.get<bool>("tie_word_embeddings", config.tied);
  return config;
}

GemmaConfig GemmaConfig::read(const JsonFields& fields) {
  const std::string& file = fields.file();
  const std::string type = fields.get<std::string>("model_type", fields.prefix().empty() ? "" : "gemma3_text");
  const bool third = type == "gemma3_text";
  BLIPFT_USER_CHECK(third || type == "gemma2", file, ": model_type: found \"", brief(type),
                    "\", supported are gemma2, gemma3, gemma3_text");
  GemmaConfig config;
  config.model_type = type;
  read_sizes(fields, third ? kGemma3 : kGemma2, config);
  config.norms = Norms::around;
  config.norm_form = {.offset = 1, .rounds_once = true};
  config.head_norms = third ? HeadNorms::each : HeadNorms::none;
  config.activation = read_activation(fields, "hidden_activation", "gelu_pytorch_tanh");
  config.qkv_bias = config.output_bias = fields.get<bool>("attention_bias", false);
  fields.only<bool>("use_bidirectional_attention", false);
  const auto scalar = static_cast<double>(fields.positive("query_pre_attn_scalar", 256));
  config.score_scale = static_cast<float>(1 / std::sqrt(scalar));
  // A Gemma 3's attn_logit_softcapping is read by nobody, in transformers neither.
  if (!third) config.score_cap = read_cap(fields, "attn_logit_softcapping", 50);
  config.logit_cap = read_cap(fields, "final_logit_softcapping", third ? 0 : 30);
  config.token_scale = static_cast<float>(std::sqrt(static_cast<double>(config.hidden)));
  read_windows(fields, third ? fields.positive("sliding_window_pattern", 6) : 2, config);
  if (third) {
    read_both_rotaries(fields, config);
  } else {
    const JsonFields rope = fields.section(rope_key(fields));
    config.rotary = read_rotary({.fields = fields, .rope = rope, .head_size = config.head_size,
                                 .positions = config.max_text_tokens},
                                config.max_text_tokens);
  }
  return config;
}

}  // namespace blipft
