// Reads config.json of BLIP-2. Defaults are those of transformers' configuration classes.
#include "models/families/picture/blip2_config.h"

#include "models/config_checks.h"

namespace blipft {

namespace {

Activation activation_of(const JsonFields& fields, const std::string& key, const std::string& fallback) {
  const std::string name = fields.get<std::string>(key, fallback);
  if (name == "gelu") return Activation::gelu;
  if (name == "relu") return Activation::relu;
  throw UserError(
      concat(fields.file(), ": ", fields.prefix(), key, ": found \"", brief(name),
             "\", supported are \"gelu\" and \"relu\""));
}

void check_heads(const JsonFields& fields, int64_t hidden, int64_t heads) {
  BLIPFT_USER_CHECK(hidden % heads == 0 && hidden / heads <= 128, fields.file(), ": ", fields.prefix(),
                    "num_attention_heads: ", heads, " heads do not divide the hidden size ", hidden,
                    " into heads of at most 128");
}

// Replaces a tiny initializer range, which some configurations contain because their weights are always loaded.
float init_std(const JsonFields& fields, const std::string& key) {
  const float value = fields.deviation(key, 0.02f);
  return value < 1e-4f ? 0.02f : value;
}

OptShape read_text(const JsonFields& fields) {
  OptShape text;
  text.vocabulary = fields.rows("vocab_size", text.vocabulary);
  text.hidden = fields.positive("hidden_size", text.hidden);
  text.inner = fields.positive("ffn_dim", text.inner);
  text.layers = fields.layers("num_hidden_layers", text.layers);
  text.heads = fields.positive("num_attention_heads", text.heads);
  text.positions = fields.rows("max_position_embeddings", text.positions);
  text.padding_id = fields.get<int64_t>("pad_token_id", text.padding_id);
  text.dropout = fields.probability("dropout", text.dropout);
  text.init_std = init_std(fields, "init_std");
  text.activation = activation_of(fields, "activation_function", "relu");
  text.bias = fields.get<bool>("enable_bias", true);
  text.tied = fields.get<bool>("tie_word_embeddings", true);
  fields.only<int64_t>("word_embed_proj_dim", text.hidden);
  fields.only<bool>("do_layer_norm_before", true);
  fields.only<bool>("_remove_final_layer_norm", false);
  fields.only<bool>("layer_norm_elementwise_affine", true);
  text.attention_dropout = fields.probability("attention_dropout", 0);
  fields.only<bool>("is_causal", true);
  fields.only<double>("layerdrop", 0.0);
  check_heads(fields, text.hidden, text.heads);
  return text;
}

VitShape read_vision(const JsonFields& fields) {
  VitShape vision;
  vision.hidden = fields.positive("hidden_size", vision.hidden);
  vision.inner = fields.positive("intermediate_size", vision.inner);
  vision.layers = fields.layers("num_hidden_layers", vision.layers);
  vision.heads = fields.positive("num_attention_heads", vision.heads);
  vision.image = fields.positive("image_size", vision.image, 16384);
  vision.patch = fields.positive("patch_size", vision.patch);
  vision.norm_eps = fields.epsilon("layer_norm_eps", vision.norm_eps);
  vision.qkv_bias = fields.get<bool>("qkv_bias", true);
  vision.init_std = init_std(fields, "initializer_range");
  fields.only<std::string>("hidden_act", "gelu");
  vision.attention_dropout = fields.probability("attention_dropout", 0);
  check_heads(fields, vision.hidden, vision.heads);
  BLIPFT_USER_CHECK(vision.image >= vision.patch, fields.file(), ": ", fields.prefix(), "patch_size: ", vision.patch,
                    " is larger than image_size ", vision.image);
  constexpr int64_t kMaxOfStrip = 32768;  // pixels of a row of patches; a thread block holds all their colours
  BLIPFT_USER_CHECK(vision.image * vision.patch <= kMaxOfStrip, fields.file(), ": ", fields.prefix(), "image_size: ",
                    vision.image, " times patch_size ", vision.patch, " is ", vision.image * vision.patch,
                    "; a row of patches has at most ", kMaxOfStrip, " pixels here");
  return vision;
}

QFormerShape read_qformer(const JsonFields& fields, int64_t picture_hidden, int64_t queries) {
  QFormerShape shape;
  shape.hidden = fields.positive("hidden_size", shape.hidden);
  shape.heads = fields.positive("num_attention_heads", shape.heads);
  shape.inner = fields.positive("intermediate_size", shape.inner);
  shape.layers = fields.layers("num_hidden_layers", shape.layers);
  shape.cross_frequency = fields.positive("cross_attention_frequency", shape.cross_frequency);
  shape.encoder_hidden = picture_hidden;  // transformers overwrites encoder_hidden_size in the same way
  shape.queries = queries;
  shape.norm_eps = fields.epsilon("layer_norm_eps", shape.norm_eps);
  shape.hidden_dropout = fields.probability("hidden_dropout_prob", shape.hidden_dropout);
  shape.attention_dropout = fields.probability("attention_probs_dropout_prob", shape.attention_dropout);
  fields.only<std::string>("hidden_act", "gelu");
  shape.init_std = init_std(fields, "initializer_range");
  check_heads(fields, shape.hidden, shape.heads);
  return shape;
}

}  // namespace

bool has_encoder(const JsonFields& fields, const std::string& decoder) {
  const JsonFields text = fields.section("text_config");
  const std::string type = text.get<std::string>("model_type", "opt");
  BLIPFT_USER_CHECK(type == decoder || type == "t5", text.file(), ": ", text.prefix(), "model_type: found \"", brief(type),
                    "\", supported are \"", decoder, "\" and \"t5\"");
  fields.only<bool>("use_decoder_only_language_model", type != "t5");
  return type == "t5";
}

BlipConfig read_blip(const JsonFields& fields) {
  for (const char* part : {"vision_config", "qformer_config", "text_config"}) refuse_quantised(fields.section(part));
  refuse_quantised(fields);
  BlipConfig config;
  config.vision = read_vision(fields.section("vision_config"));
  config.qformer =
      read_qformer(fields.section("qformer_config"), config.vision.hidden, fields.positive("num_query_tokens", 32));
  return config;
}

BlipConfig read_blip2(const JsonFields& fields) {
  const bool encodes = has_encoder(fields, "opt");
  BlipConfig config = read_blip(fields);
  fields.section("qformer_config").only<bool>("use_qformer_text_input", false);
  config.family = encodes ? "blip2-t5" : "blip2-opt";
  const JsonFields text = fields.section("text_config");
  if (encodes) config.language = T5Config::read(text);
  else config.language = read_text(text);
  return config;
}

}  // namespace blipft
