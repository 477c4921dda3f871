// Qwen2.5-VL (Bai et al. 2025) and Qwen3-VL (2025): a tower for pictures of any size before a Qwen 2 or Qwen 3, whose rotary
// positions have three axes. Videos are not read. Defaults are those of transformers' configuration classes.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/config_checks.h"
#include "models/families/decoder/decoder_config.h"
#include "models/families/decoder/rotary_config.h"
#include "models/families/families.h"
#include "models/families/picture/tower_model.h"
#include "models/towers/merging_vit.h"

namespace blipft {

namespace {

constexpr int64_t kMaxPatch = 1024, kMaxOfSide = 16;  // pixels; patches of a cell's side, slices of a patch

/// Reads positions on the axes time, y and x. `interleaved`: see rotary_axes().
void read_mrope(const JsonFields& fields, double base, const std::vector<int64_t>& absent, bool interleaved, DecoderConfig& config) {
  const JsonFields rope = shared_rope(fields, config.model_type);
  config.rotary = read_rotary({.fields = fields, .rope = rope, .base = base, .head_size = config.head_size,
                               .positions = config.max_text_tokens, .mrope = true},
                              config.max_text_tokens);
  const std::vector<int64_t> sections = rope.get("mrope_section", absent);
  const int64_t pairs = config.head_size / 2;
  const bool three = sections.size() == 3 && std::all_of(sections.begin(), sections.end(), [&](int64_t n) { return n > 0 && n < pairs; });
  BLIPFT_USER_CHECK(three && std::accumulate(sections.begin(), sections.end(), int64_t{0}) == pairs, rope.file(), ": ",
                    rope.prefix(), "mrope_section: found ", rope.has("mrope_section") ? rope.quote("mrope_section") : "nothing",
                    ", expected three positive numbers with the sum ", pairs, ", half of head_dim");
  config.rotary.axes = rotary_axes(sections, interleaved);
}

DecoderConfig read_qwen3_text(const JsonFields& fields) {
  DecoderConfig config{.model_type = "qwen3_vl"};
  fields.only<std::string>("model_type", "qwen3_vl_text");
  read_sizes(fields, {151936, 4096, 22016, 32, 32, 32, 128, 128000, 1e-6f}, config);
  config.head_norms = DecoderConfig::HeadNorms::each;
  config.activation = read_activation(fields, "hidden_act", "silu");
  read_attention_bias(fields, config);
  read_mrope(fields, 5e5, {24, 20, 20}, true, config);
  return config;
}

DecoderConfig read_qwen2_5_text(const JsonFields& fields) {
  DecoderConfig config{.model_type = "qwen2_5_vl"};
  read_sizes(fields, {152064, 8192, 29568, 80, 64, 8, 0, 32768, 1e-5f}, config);
  config.activation = read_activation(fields, "hidden_act", "silu");
  config.qkv_bias = true;
  fields.only<bool>("use_sliding_window", false);
  read_mrope(fields, 1e6, {16, 24, 24}, false, config);
  return config;
}

/// Reads what both towers have. `hidden`: of the language model.
MergingVitShape read_vision(const JsonFields& fields, MergingVitShape defaults, int64_t hidden) {
  MergingVitShape v = std::move(defaults);
  v.hidden = fields.positive("hidden_size", v.hidden);
  v.inner = fields.positive("intermediate_size", v.inner);
  v.layers = fields.layers("depth", v.layers);
  v.heads = fields.positive("num_heads", v.heads);
  v.patch = fields.positive("patch_size", v.patch, kMaxPatch);
  v.merge = fields.positive("spatial_merge_size", 2, kMaxOfSide);
  v.time = fields.positive("temporal_patch_size", 2, kMaxOfSide);
  v.out = fields.positive("out_hidden_size", 3584);
  v.init_std = fields.deviation("initializer_range", v.init_std);
  fields.only<int64_t>("in_channels", 3);
  const JsonFields rope = fields.section("rope_parameters");
  rope.only<std::string>("rope_type", "axial");
  rope.only<double>("rope_theta", 10000);
  BLIPFT_USER_CHECK(v.hidden % v.heads == 0 && v.hidden / v.heads % 4 == 0 && v.hidden / v.heads <= 2 * Rotary::kMaxFrequencies,
                    fields.file(), ": ", fields.prefix(), "num_heads: found ", v.heads, " heads of a hidden size of ", v.hidden,
                    ", expected heads with a size that is a multiple of 4, at most ", 2 * Rotary::kMaxFrequencies);
  BLIPFT_USER_CHECK(v.out == hidden, fields.file(), ": ", fields.prefix(), "out_hidden_size: found ", v.out, ", expected ", hidden,
                    ", the hidden_size of the language model");
  return v;
}

MergingVitShape read_qwen3_vision(const JsonFields& fields, int64_t hidden, int64_t text_layers) {
  MergingVitShape v = read_vision(fields, {.hidden = 1152, .inner = 4304, .layers = 27, .heads = 16, .patch = 16, .patch_bias = true,
                                           .merger_norm = "norm", .merger_first = "linear_fc1", .merger_last = "linear_fc2"},
                                  hidden);
  fields.only<std::string>("hidden_act", "gelu_pytorch_tanh");
  const int64_t entries = fields.rows("num_position_embeddings", 2304);
  v.table = std::lround(std::sqrt(static_cast<double>(entries)));
  BLIPFT_USER_CHECK(v.table * v.table == entries, fields.file(), ": ", fields.prefix(), "num_position_embeddings: found ", entries,
                    ", expected a square number");
  v.taps = fields.get<std::vector<int64_t>>("deepstack_visual_indexes", {8, 16, 24});
  bool ascending = static_cast<int64_t>(v.taps.size()) <= text_layers;
  for (size_t i = 0; i < v.taps.size(); ++i)
    ascending = ascending && v.taps[i] >= 0 && v.taps[i] < v.layers && (i == 0 || v.taps[i] > v.taps[i - 1]);
  BLIPFT_USER_CHECK(ascending, fields.file(), ": ", fields.prefix(), "deepstack_visual_indexes: found ",
                    fields.has("deepstack_visual_indexes") ? fields.quote("deepstack_visual_indexes") : "nothing", ", expected at most ",
                    text_layers, " ascending numbers below the depth, ", v.layers);
  return v;
}

MergingVitShape read_qwen2_5_vision(const JsonFields& fields, int64_t hidden) {
  MergingVitShape v = read_vision(fields, {.hidden = 3584, .inner = 3420, .layers = 32, .heads = 16, .patch = 14, .rms = true,
                                           .merger_norm = "ln_q", .merger_first = "mlp.0", .merger_last = "mlp.2"},
                                  hidden);
  fields.only<std::string>("hidden_act", "silu");
  const int64_t window = fields.positive("window_size", 112);
  v.window = window / (v.merge * v.patch);
  BLIPFT_USER_CHECK(v.window > 0, fields.file(), ": ", fields.prefix(), "window_size: found ", window, ", expected at least ",
                    v.merge * v.patch, ", patch_size times spatial_merge_size");
  v.whole = fields.get<std::vector<int64_t>>("fullatt_block_indexes", {7, 15, 23, 31});
  return v;
}

TowerModelConfig tower_config(const JsonFields& fields, DecoderConfig language) {
  refuse_quantised(fields);
  TowerModelConfig config{.language = std::move(language), .position_axes = 3};
  const auto image = fields.get<int64_t>("image_token_id", 151655);
  BLIPFT_USER_CHECK(image >= 0 && image < config.language.vocabulary, fields.file(), ": image_token_id: found ", image,
                    ", expected a number below the vocabulary's size, ", config.language.vocabulary);
  config.picture_id = static_cast<int32_t>(image);
  return config;
}

std::unique_ptr<Model> make_model(TowerModelConfig config, const MergingVitShape& vision, const JsonFields& fields,
                                  const ModelSettings& settings) {
  return make_tower_model(std::move(config), fields.file(), settings, [&](const TowerBuilding& building) {
    return std::make_unique<MergingVit>(vision, "model.visual.", building);
  });
}

std::unique_ptr<Model> make_qwen3(const JsonFields& fields, const ModelSettings& settings) {
  TowerModelConfig config = tower_config(fields, read_qwen3_text(fields.section("text_config")));
  config.language.tied = fields.get<bool>("tie_word_embeddings", false);  // the flag of text_config has no effect
  const MergingVitShape vision = read_qwen3_vision(fields.section("vision_config"), config.language.hidden, config.language.layers);
  return make_model(std::move(config), vision, fields, settings);
}

std::unique_ptr<Model> make_qwen2_5(const JsonFields& fields, const ModelSettings& settings) {
  // The keys of the text stand in the file itself, or in text_config, which takes precedence.
  TowerModelConfig config = tower_config(fields, read_qwen2_5_text(fields.has("text_config") ? fields.section("text_config") : fields));
  config.language.tied = fields.get<bool>("tie_word_embeddings", config.language.tied);
  config.names_in_files = {{"model.visual.", "visual."}, {"model.language_model.", "model."}};
  const MergingVitShape vision = read_qwen2_5_vision(fields.section("vision_config"), config.language.hidden);
  return make_model(std::move(config), vision, fields, settings);
}

Family qwen_vl(FamilySpec spec) {
  spec.tokenizer = {"Qwen2Tokenizer"};
  spec.tie.weights = {{"lm_head.weight", "model.language_model.embed_tokens.weight"}, {"lm_head.weight", "model.embed_tokens.weight"}};
  spec.tie.flag_at_root = true;
  spec.pixels = {.resize = {.library = PixelLibrary::torchvision}, .patches = {.patch = 14}};
  spec.picture_tokens = {.placeholder = "<|image_pad|>", .before = "", .cell = "<|image_pad|>", .after = ""};
  return {.spec = std::move(spec)};
}

}  // namespace

Family families::qwen3_vl() {
  Family family = qwen_vl({.model_type = "qwen3_vl",
                           .saved_as = {"Qwen3VLForConditionalGeneration", "transformers.models.qwen3_vl.modeling_qwen3_vl"}});
  family.make = make_qwen3;
  return family;
}

Family families::qwen2_5_vl() {
  Family family = qwen_vl({.model_type = "qwen2_5_vl",
                           .saved_as = {"Qwen2_5_VLForConditionalGeneration", "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl"}});
  family.make = make_qwen2_5;
  return family;
}

}  // namespace blipft
