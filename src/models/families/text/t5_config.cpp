// Reads config.json of a T5; see t5_config.h. Defaults are those of transformers' T5Config.
#include "models/families/text/t5_config.h"

#include <cmath>

#include "models/config_checks.h"
#include "models/families/decoder/decoder_config.h"

namespace blipft {

namespace {

constexpr int64_t kMaxHeadSize = 256;

/// dense_act_fn overrides feed_forward_proj, whose value gated-gelu means gelu with tanh.
void read_activation(const JsonFields& fields, T5Config& config) {
  const std::string form = fields.get<std::string>("feed_forward_proj", "relu"), prefix = "gated-";
  config.gated = form.starts_with(prefix);
  const std::string named = config.gated ? form.substr(prefix.size()) : form;
  const bool given = fields.has("dense_act_fn");
  const std::string name = given                  ? fields.get<std::string>("dense_act_fn", "")
                           : form == "gated-gelu" ? "gelu_new"
                                                  : named;
  const std::string found = concat(fields.file(), ": ", fields.prefix(), given ? "dense_act_fn" : "feed_forward_proj",
                                   ": found \"", brief(given ? name : form), "\", supported are ");
  if (config.gated) {
    if (name == "gelu") config.gate = GateActivation::gelu;
    else if (name == "gelu_new" || name == "gelu_pytorch_tanh") config.gate = GateActivation::gelu_tanh;
    else if (name == "silu" || name == "swish") config.gate = GateActivation::silu;
    else if (name == "relu") config.gate = GateActivation::relu;
    else throw UserError(concat(found, "\"gelu\", \"gelu_new\", \"gelu_pytorch_tanh\", \"silu\", \"swish\" and \"relu\""));
    return;
  }
  if (name == "gelu") config.activation = Activation::gelu;
  else if (name == "relu") config.activation = Activation::relu;
  else throw UserError(concat(found, "\"gelu\" and \"relu\", or with a gate (feed_forward_proj: gated-gelu) more"));
}

void read_positions(const JsonFields& fields, T5Config& config) {
  config.buckets = fields.positive("relative_attention_num_buckets", config.buckets);
  config.max_distance = fields.positive("relative_attention_max_distance", config.max_distance);
  BLIPFT_USER_CHECK(config.buckets % 4 == 0 && config.buckets <= RelativeBias::kMaxBuckets, fields.file(), ": ",
                    fields.prefix(), "relative_attention_num_buckets: found ", config.buckets,
                    ", supported are multiples of 4 of at most ", RelativeBias::kMaxBuckets);
  BLIPFT_USER_CHECK(config.max_distance > config.buckets / 2, fields.file(), ": ", fields.prefix(),
                    "relative_attention_max_distance: found ", config.max_distance, ", expected more than ",
                    config.buckets / 2, ", half of relative_attention_num_buckets");
}

}  // namespace

T5Config T5Config::read(const JsonFields& fields) {
  T5Config config;
  config.vocabulary = fields.rows("vocab_size", config.vocabulary);
  config.hidden = fields.positive("d_model", config.hidden);
  config.inner = fields.positive("d_ff", config.inner);
  config.heads = fields.positive("num_heads", config.heads);
  config.head_size = fields.positive("d_kv", config.head_size, kMaxHeadSize);
  config.layers = fields.layers("num_layers", config.layers);
  config.decoder_layers = fields.layers("num_decoder_layers", config.layers);
  config.norm_eps = fields.epsilon("layer_norm_epsilon", config.norm_eps);
  config.dropout = fields.probability("dropout_rate", config.dropout);
  config.init_factor = fields.deviation("initializer_factor", config.init_factor);
  BLIPFT_USER_CHECK(fields.has("decoder_start_token_id"), fields.file(), ": ", fields.prefix(), "decoder_start_token_id: ",
                    "the file has no such key, and a decoder's text begins with this id; add it (that of every published ",
                    "T5 is 0)");
  const auto start = fields.get<int64_t>("decoder_start_token_id", 0);
  BLIPFT_USER_CHECK(start >= 0 && start < config.vocabulary, fields.file(), ": ", fields.prefix(),
                    "decoder_start_token_id: found ", start, ", expected an id below vocab_size, ", config.vocabulary);
  config.decoder_start = static_cast<int32_t>(start);
  config.tied = fields.get<bool>("tie_word_embeddings", true);
  config.scaled = fields.get<bool>("scale_decoder_outputs", config.tied);
  fields.only<bool>("is_encoder_decoder", true);
  fields.only<bool>("is_decoder", false);
  refuse_quantised(fields);
  read_activation(fields, config);
  read_positions(fields, config);
  return config;
}

// first[k] is the smallest distance with a bucket of at least k. Computed in f32, as in transformers.
RelativeBias relative_rule(const T5Config& config, bool both_ways) {
  RelativeBias rule;
  rule.distances = both_ways ? config.buckets / 2 : config.buckets;
  rule.directed = both_ways ? rule.distances : 0;
  const int64_t exact = rule.distances / 2;
  const auto ratio = static_cast<float>(std::log(static_cast<double>(config.max_distance) / static_cast<double>(exact)));
  int64_t next = 0;
  for (int64_t n = 0; next < rule.distances; ++n) {
    const float far = std::log(static_cast<float>(n) / static_cast<float>(exact)) / ratio *
                      static_cast<float>(rule.distances - exact);
    const int64_t bucket =
        n < exact ? n : std::min<int64_t>(rule.distances - 1, exact + static_cast<int64_t>(far));
    for (; next <= bucket; ++next) rule.first[next] = static_cast<int32_t>(n);
  }
  rule.scores.behind = rule.first[rule.distances - 1];
  rule.scores.ahead = both_ways ? rule.scores.behind : 0;
  return rule;
}

}  // namespace blipft
