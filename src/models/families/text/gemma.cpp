// Gemma 2 (Gemma Team 2024) and Gemma 3 (2025): norms before and after each branch, soft caps or norms of queries and keys,
// a window in most layers, scaled embeddings. A Gemma 3 with pictures (4B and larger) has a SigLIP tower. If the data have
// no pictures, its text part alone is trained and generates text; saved models keep the rest unchanged.
#include <cmath>
#include <utility>

#include "models/config_checks.h"
#include "models/families/decoder/decoder_config.h"
#include "models/families/decoder/rotary_config.h"
#include "models/families/families.h"
#include "models/families/picture/tower_model.h"
#include "models/towers/siglip.h"

namespace blipft {

namespace {

using LayerKind = DecoderConfig::LayerKind;

constexpr float kMaxCap = 1e6f;
constexpr int64_t kMaxPictureSide = 16384, kMaxHead = 256;  // in pixels, in elements

constexpr DecoderDefaults kGemma2{256000, 2304, 9216, 26, 8, 4, 256, 8192, 1e-6f, true, 0};
constexpr DecoderDefaults kGemma3{262208, 2304, 9216, 26, 8, 4, 256, 131072, 1e-6f, true, 0};

/// Reads a soft cap; null: none.
float read_cap(const JsonFields& fields, const char* key, float absent) {
  if (fields.is_null(key) || (!fields.has(key) && absent == 0)) return 0;
  const float cap = fields.get<float>(key, absent);
  BLIPFT_USER_CHECK(cap > 0 && cap <= kMaxCap, fields.file(), ": ", fields.prefix(), key, ": found ", cap,
                    ", expected a positive number, at most ", kMaxCap, ", or null");
  return cap;
}

void read_windows(const JsonFields& fields, int64_t pattern, DecoderConfig& config) {
  const int64_t window = read_window(fields, 4096);
  const std::vector<bool> sliding =
      read_sliding(fields, config.layers, [&](int64_t i) { return (i + 1) % pattern != 0; });
  set_windows(config, window, sliding);
}

/// Gemma 3 has two kinds: layers with a window rotate faster. Scaling in an old file applies only to the other layers.
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
  const RotarySource of_local{.fields = fields, .rope = local, .base = static_cast<double>(base), .base_next_to = false,
                              .head_size = config.head_size, .positions = config.max_text_tokens};
  config.local_rotary = read_rotary(of_local, config.max_text_tokens);
  const auto sliding = read_sliding(fields, config.layers, [&](int64_t i) {
    return (i + 1) % fields.positive("sliding_window_pattern", 6) != 0;
  });
  for (size_t i = 0; i < sliding.size(); ++i)
    config.kinds[i].turns = sliding[i] ? LayerKind::RopeKind::local : LayerKind::RopeKind::global;
}

DecoderConfig read(const JsonFields& fields, bool third) {
  DecoderConfig config{.model_type = third ? "gemma3_text" : "gemma2"};
  read_sizes(fields, third ? kGemma3 : kGemma2, config);
  config.norms = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"};
  config.norm_form = {.offset = 1, .rounds_once = true};
  config.head_norms = third ? DecoderConfig::HeadNorms::each : DecoderConfig::HeadNorms::none;
  config.activation = read_activation(fields, "hidden_activation", "gelu_pytorch_tanh");
  read_attention_bias(fields, config);
  fields.only<bool>("use_bidirectional_attention", false);
  const auto scalar = static_cast<double>(fields.positive("query_pre_attn_scalar", 256));
  config.score_scale = static_cast<float>(1 / std::sqrt(scalar));
  // transformers ignores attn_logit_softcapping in Gemma 3 too.
  if (!third) config.score_cap = read_cap(fields, "attn_logit_softcapping", 50);
  config.logit_cap = read_cap(fields, "final_logit_softcapping", third ? 0 : 30);
  config.token_scale = static_cast<float>(std::sqrt(static_cast<double>(config.hidden)));
  read_windows(fields, third ? fields.positive("sliding_window_pattern", 6) : 2, config);
  if (third) {
    read_both_rotaries(fields, config);
  } else {
    read_shared_rotary(fields, config);
  }
  return config;
}

DecoderConfig read_gemma2(const JsonFields& fields) { return read(fields, false); }
DecoderConfig read_gemma3_text(const JsonFields& fields) { return read(fields, true); }

DecoderConfig read_gemma3(const JsonFields& fields) {
  const JsonFields texts = fields.section("text_config");
  BLIPFT_USER_CHECK(!texts.empty(), fields.file(),
                    ": text_config: found nothing, expected the sizes of the language model of a gemma3");
  texts.only<std::string>("model_type", "gemma3_text");
  DecoderConfig config = read_gemma3_text(texts);
  config.logit_cap = 0;                    // transformers does not apply the cap in this model
  // transformers uses the outer key.
  config.tied = fields.get<bool>("tie_word_embeddings", config.tied);
  return config;
}

SiglipShape read_vision(const JsonFields& fields) {
  SiglipShape v;
  v.hidden = fields.positive("hidden_size", v.hidden);
  v.inner = fields.positive("intermediate_size", v.inner);
  v.layers = fields.layers("num_hidden_layers", v.layers);
  v.heads = fields.positive("num_attention_heads", v.heads);
  v.image = fields.positive("image_size", v.image, kMaxPictureSide);
  v.patch = fields.positive("patch_size", v.patch, kMaxPictureSide);
  v.norm_eps = fields.epsilon("layer_norm_eps", v.norm_eps);
  refuse_quantised(fields);
  fields.only<std::string>("model_type", "siglip_vision_model");
  fields.only<std::string>("hidden_act", "gelu_pytorch_tanh");
  fields.only<int64_t>("num_channels", 3);
  BLIPFT_USER_CHECK(v.hidden % v.heads == 0 && v.hidden / v.heads <= kMaxHead, fields.file(), ": ", fields.prefix(),
                    "num_attention_heads: found ", v.heads, ", expected a divisor of hidden_size, ", v.hidden,
                    ", with heads of at most ", kMaxHead);
  BLIPFT_USER_CHECK(v.image % v.patch == 0, fields.file(), ": ", fields.prefix(), "image_size: found ", v.image,
                    ", expected a multiple of patch_size, ", v.patch);
  return v;
}

std::unique_ptr<Model> make_gemma3(const JsonFields& fields, const ModelSettings& settings) {
  DecoderConfig language = read_gemma3(fields);
  // As transformers' modules are called, and PEFT's adapters; files have the names of before.
  if (!settings.pictures) {
    const DecoderPlacement in_files{"language_model.model.", "language_model.lm_head"};
    return make_decoder(std::move(language), fields.file(), settings, {"model.language_model.", "lm_head"}, &in_files);
  }
  const JsonFields vision_fields = fields.section("vision_config");
  SiglipShape vision = read_vision(vision_fields);
  check_dropout(fields.file(), "vision_config.attention_dropout", vision_fields.probability("attention_dropout", 0), settings.dropout);
  const int64_t rows = fields.positive("mm_tokens_per_image", 256);
  const int64_t side = std::lround(std::sqrt(static_cast<double>(rows)));
  BLIPFT_USER_CHECK(side * side == rows && vision.side() % side == 0, fields.file(), ": mm_tokens_per_image: found ", rows,
                    ", expected the square of a divisor of ", vision.side(), ", the patches of a picture's side");
  vision.merge = vision.side() / side;
  vision.out = language.hidden;
  const int64_t image = fields.get<int64_t>("image_token_index", 262144);
  BLIPFT_USER_CHECK(image >= 0 && image < language.vocabulary, fields.file(), ": image_token_index: found ", image,
                    ", expected a number below vocab_size, ", language.vocabulary);
  const std::string tower = "model.vision_tower.", merger = "model.multi_modal_projector.";
  TowerModelConfig config{.language = std::move(language), .picture_id = static_cast<int32_t>(image), .last_keys = true};
  config.names_in_files = {{"model.language_model.", "language_model.model."}, {"lm_head.", "language_model.lm_head."},
                           {merger, "multi_modal_projector."}, {tower, "vision_tower."}, {tower, "vision_tower.vision_model."},
                           {tower, "model.vision_tower.vision_model."}};
  return make_tower_model(std::move(config), fields.file(), settings, [&](const TowerBuilding& building) {
    return std::make_unique<Siglip>(vision, tower, merger, building);
  });
}

Family gemma(FamilySpec spec) {
  Family family{.spec = std::move(spec)};
  family.spec.tokenizer = {"GemmaTokenizer"};
  family.spec.tie.by_default = true;
  return family;
}

}  // namespace

Family families::gemma2() {
  Family family = gemma(decoder_spec("gemma2", "Gemma2ForCausalLM"));
  family.read_decoder = read_gemma2;
  return family;
}

Family families::gemma3_text() {
  Family family = gemma(decoder_spec("gemma3_text", "Gemma3ForCausalLM"));
  family.spec.saved_as.module = "transformers.models.gemma3.modeling_gemma3";
  family.read_decoder = read_gemma3_text;
  return family;
}

Family families::gemma3() {
  Family family = gemma(decoder_spec("gemma3", "Gemma3ForConditionalGeneration"));
  family.read_decoder = read_gemma3;
  family.make = make_gemma3;
  family.spec.tie.weights = {{"lm_head.weight", "model.language_model.embed_tokens.weight"}};
  family.spec.pixels = {.image_size = 896, .statistics = {{0.5f, 0.5f, 0.5f}, {0.5f, 0.5f, 0.5f}},
                        .resize = {ResizeFilter::bilinear, PixelLibrary::torchvision}};
  family.spec.picture_tokens = {"<start_of_image>", "\n\n<start_of_image>", "<image_soft_token>", "<end_of_image>\n\n"};
  family.spec.kept_tensors = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."};
  return family;
}

}  // namespace blipft
