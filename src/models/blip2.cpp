// BLIP-2: a vision tower (ViT), a Q-Former that reads it, and an OPT language model that
// continues from what the Q-Former read.
//
// Dimension legend: B samples; P patches of a picture, V = 1 + P picture tokens, E vision hidden size; Q queries, D
// Q-Former hidden size; T text tokens, S = Q + T language-model positions (of packed samples: at most), M rows of the
// language model in all, B * S unless packed, H its hidden size.
#include "models/blip2.h"

#include <algorithm>

#include "models/blip2_config.h"
#include "models/causal_head.h"
#include "models/json_fields.h"
#include "models/linear_lora.h"
#include "models/prenorm_layer.h"

namespace blipft {

namespace {

constexpr uint32_t kQFormerSites = 1000, kLanguageSites = 2000;  // dropout sites: one number per place in the model
constexpr int64_t kPositionOffset = 2;                           // OPT's learned positions start at row 2

class Blip2 : public Model {
 public:
  Blip2(const Blip2Config& config, const ModelSettings& settings)
      : config_(config), settings_(settings), vision_group_(add_group(settings, "vision")),
        qformer_group_(add_group(settings, "qformer")),
        projection_group_(add_group(settings, "language_projection")),
        language_group_(add_group(settings, "language")), adapter_group_(add_adapter_group(settings)),
        lora_(settings.adapter, "language_model.",
              [this](const std::string& name) -> Unit& { return add_unit(name, *adapter_group_); }) {
    train_vision_ = vision_group_.trained, train_qformer_ = qformer_group_.trained;
    train_projection_ = projection_group_.trained, train_language_ = language_group_.trained;
    add_vision_units();
    add_qformer_units();
    add_language_units();
    lora_.check();
  }

  std::string description() const override {
    return concat("blip2-opt (vision ", config_.vision.layers, " x ", config_.vision.hidden, ", Q-Former ",
                  config_.qformer.layers, " x ", config_.qformer.hidden, ", OPT ", config_.text.layers, " x ",
                  config_.text.hidden, ")");
  }
  ModelInputs inputs() const override {
    const int64_t queries = config_.qformer.queries;
    return {.picture_size = config_.vision.image, .prefix_rows = queries,
            .max_text_tokens = config_.text.positions - queries, .vocabulary = config_.text.vocabulary,
            .key_lengths = true, .label_rows = head_.unit->adapter && settings_.adapter.dropout > 0};
  }

  void forward_backward(const StepContext& context, const MicroBatch& batch) override;
  void forward_loss(const StepContext& context, const MicroBatch& batch) override;
  double unit_flops(const Unit& unit, Phase phase, int64_t batch_size, double text_rows) const override;

 private:
  // How far backward goes: out of the language model into the projection, and from there into the Q-Former.
  bool into_qformer() const { return train_vision_ || train_qformer_; }
  bool into_prefix() const { return into_qformer() || train_projection_; }
  float dropout(float p) const { return settings_.dropout ? p : 0; }
  int64_t patches() const {
    return (config_.vision.image / config_.vision.patch) * (config_.vision.image / config_.vision.patch);
  }
  // Operations of a unit's forward; its backward costs as much for the gradient of its weights, and again for that of
  // its input, where they are wanted.
  struct Cost {
    double forward = 0;
    bool trained = false, passes = false;
    double recompute = 0;                    // with activation checkpointing
  };
  Cost cost_of(const Unit& unit, int64_t batch_size, double text_rows) const;
  void add_vision_units();
  void add_qformer_units();
  void add_language_units();
  void add_opt_layer(int64_t i);

  Tensor forward(const StepContext& context, const MicroBatch& batch, bool save);
  PreNormLayer::Call language_call(const MicroBatch& batch) const;
  RowBlocks predicting(const MicroBatch& batch) const;
  Tensor patches_of(const StepContext& context, const MicroBatch& batch) const;
  Tensor vision_forward(const StepContext& context, const MicroBatch& batch, bool save);
  void vision_backward(const StepContext& context, const MicroBatch& batch, Tensor dpicture);
  Tensor project_forward(const StepContext& context, const Tensor& queries);
  Tensor project_backward(const StepContext& context, Tensor dprefix);
  Tensor embed_forward(const StepContext& context, const MicroBatch& batch, Tensor prefix);
  Tensor embed_backward(const StepContext& context, const MicroBatch& batch, Tensor dx);
  TextEmbed text_embed(const MicroBatch& batch) const;

  Blip2Config config_;
  ModelSettings settings_;
  const ParameterGroup &vision_group_, &qformer_group_, &projection_group_, &language_group_;
  const ParameterGroup* adapter_group_;
  LoraBuilder lora_;
  bool train_vision_ = true, train_qformer_ = true, train_projection_ = true, train_language_ = true;

  Unit* vision_embeddings_ = nullptr;
  int64_t class_embedding_ = -1, vision_positions_ = -1;
  LinearLayer patch_embedding_;
  PreNormStack vision_;
  Unit* vision_norm_unit_ = nullptr;
  Norm vision_norm_;
  QFormer qformer_;
  Unit* projection_unit_ = nullptr;
  LinearLayer projection_;
  Unit* text_embeddings_ = nullptr;
  int64_t token_table_ = -1, position_table_ = -1;
  PreNormStack language_;
  CausalHead head_;

  // Saved for backward.
  Tensor vision_out_, queries_;            // [B * V, E] before the post norm, [B * Q, D]
  NormResult picture_;                     // [B * V, E], what the Q-Former reads
};

void Blip2::add_vision_units() {
  const Blip2Config::Vision& v = config_.vision;
  const std::string root = "vision_model.";
  vision_embeddings_ = &add_unit("vision.embeddings", vision_group_);
  class_embedding_ =
      vision_embeddings_->add(root + "embeddings.class_embedding", {1, 1, v.hidden}, Init::normal(v.init_std));
  vision_positions_ = vision_embeddings_->add(root + "embeddings.position_embedding", {1, 1 + patches(), v.hidden},
                                              Init::normal(v.init_std));
  patch_embedding_ = {3 * v.patch * v.patch, v.hidden, 0, 0};
  patch_embedding_.weight = vision_embeddings_->add(root + "embeddings.patch_embedding.weight",
                                                    {v.hidden, 3, v.patch, v.patch}, Init::normal(v.init_std));
  patch_embedding_.bias =
      vision_embeddings_->add(root + "embeddings.patch_embedding.bias", {v.hidden}, Init::constant(0));
  for (int64_t i = 0; i < v.layers; ++i) {
    const std::string name = concat(root, "encoder.layers.", i, ".");
    PreNormLayer layer;
    layer.unit = &add_unit(concat("vision.layers.", i), vision_group_);
    layer.shape = {v.hidden, v.heads, v.inner, Activation::gelu, false, 0};
    layer.norm1 = add_norm(*layer.unit, name + "layer_norm1", v.hidden, v.norm_eps);
    layer.qkv = add_linear(*layer.unit, name + "self_attn.qkv", v.hidden, 3 * v.hidden, v.qkv_bias, v.init_std);
    layer.projection = add_linear(*layer.unit, name + "self_attn.projection", v.hidden, v.hidden, true, v.init_std);
    layer.norm2 = add_norm(*layer.unit, name + "layer_norm2", v.hidden, v.norm_eps);
    layer.fc1 = add_linear(*layer.unit, name + "mlp.fc1", v.hidden, v.inner, true, v.init_std);
    layer.fc2 = add_linear(*layer.unit, name + "mlp.fc2", v.inner, v.hidden, true, v.init_std);
    vision_.layers.push_back(layer);
  }
  vision_.checkpointed = settings_.checkpointing.layers_of(v.layers);
  vision_norm_unit_ = &add_unit("vision.norm", vision_group_);
  vision_norm_ = add_norm(*vision_norm_unit_, root + "post_layernorm", v.hidden, v.norm_eps);
}

void Blip2::add_qformer_units() {
  QFormerShape& shape = config_.qformer;
  shape.hidden_dropout = dropout(shape.hidden_dropout);
  shape.attention_dropout = dropout(shape.attention_dropout);
  const float std = config_.qformer_init_std;
  const int64_t d = shape.hidden;
  qformer_.shape = shape;
  qformer_.dropout_site = kQFormerSites;
  qformer_.embeddings = &add_unit("qformer.embeddings", qformer_group_);
  qformer_.query_tokens = qformer_.embeddings->add("query_tokens", {1, shape.queries, d}, Init::normal(std));
  qformer_.input_norm = add_norm(*qformer_.embeddings, "qformer.layernorm", d, shape.norm_eps);
  for (int64_t i = 0; i < shape.layers; ++i) {
    const std::string name = concat("qformer.encoder.layer.", i, ".");
    QFormerLayer layer;
    layer.unit = &add_unit(concat("qformer.layers.", i), qformer_group_);
    layer.shape = shape;
    layer.dropout_site = kQFormerSites + 1 + 5 * static_cast<uint32_t>(i);
    Unit& unit = *layer.unit;
    const std::string self = name + "attention.attention.", cross = name + "crossattention.attention.";
    layer.self.present = true;
    layer.self.qkv = add_packed_linear(unit, {self + "query", self + "key", self + "value"}, d, d, true, std);
    layer.self.output = add_linear(unit, name + "attention.output.dense", d, d, true, std);
    layer.self.norm = add_norm(unit, name + "attention.output.LayerNorm", d, shape.norm_eps);
    if (i % shape.cross_frequency == 0) {
      layer.cross.present = layer.cross.cross = true;
      layer.cross.query = add_linear(unit, cross + "query", d, d, true, std);
      layer.cross.key_value =
          add_packed_linear(unit, {cross + "key", cross + "value"}, shape.encoder_hidden, d, true, std);
      layer.cross.output = add_linear(unit, name + "crossattention.output.dense", d, d, true, std);
      layer.cross.norm = add_norm(unit, name + "crossattention.output.LayerNorm", d, shape.norm_eps);
    }
    layer.fc1 = add_linear(unit, name + "intermediate_query.dense", d, shape.inner, true, std);
    layer.fc2 = add_linear(unit, name + "output_query.dense", shape.inner, d, true, std);
    layer.norm = add_norm(unit, name + "output_query.LayerNorm", d, shape.norm_eps);
    qformer_.layers.push_back(layer);
  }
  qformer_.checkpointed = settings_.checkpointing.layers_of(shape.layers);
  projection_unit_ = &add_unit("language_projection", projection_group_);
  projection_ = add_linear(*projection_unit_, "language_projection", d, config_.text.hidden, true, std);
}

void Blip2::add_opt_layer(int64_t i) {
  const Blip2Config::Text& t = config_.text;
  const std::string name = concat("language_model.model.decoder.layers.", i, ".");
  PreNormLayer layer;
  layer.unit = &add_unit(concat("language.layers.", i), language_group_);
  layer.shape = {t.hidden, t.heads, t.inner, t.activation, true, dropout(t.dropout)};
  layer.dropout_site = kLanguageSites + 2 * static_cast<uint32_t>(i);
  const std::string attention = name + "self_attn.";
  layer.norm1 = add_norm(*layer.unit, name + "self_attn_layer_norm", t.hidden, t.norm_eps);
  layer.qkv = add_packed_linear(*layer.unit, {attention + "q_proj", attention + "k_proj", attention + "v_proj"},
                                t.hidden, t.hidden, t.bias, t.init_std);
  layer.projection = add_linear(*layer.unit, attention + "out_proj", t.hidden, t.hidden, t.bias, t.init_std);
  layer.norm2 = add_norm(*layer.unit, name + "final_layer_norm", t.hidden, t.norm_eps);
  layer.fc1 = add_linear(*layer.unit, name + "fc1", t.hidden, t.inner, t.bias, t.init_std);
  layer.fc2 = add_linear(*layer.unit, name + "fc2", t.inner, t.hidden, t.bias, t.init_std);
  lora_.attach(*layer.unit, {{&layer.qkv, {attention + "q_proj", attention + "k_proj", attention + "v_proj"}},
                             {&layer.projection, {attention + "out_proj"}}, {&layer.fc1, {name + "fc1"}},
                             {&layer.fc2, {name + "fc2"}}});
  language_.layers.push_back(layer);
}

void Blip2::add_language_units() {
  const Blip2Config::Text& t = config_.text;
  const std::string decoder = "language_model.model.decoder.";
  text_embeddings_ = &add_unit("language.embeddings", language_group_);
  const auto add_table = [&](const char* name, int64_t rows) {
    return text_embeddings_->add(decoder + name, {rows, t.hidden}, Init::normal(t.init_std), false,
                                 ParameterKind::embedding);
  };
  token_table_ = add_table("embed_tokens.weight", t.vocabulary);
  position_table_ = add_table("embed_positions.weight", t.positions + kPositionOffset);
  for (int64_t i = 0; i < t.layers; ++i) add_opt_layer(i);
  language_.checkpointed = settings_.checkpointing.layers_of(t.layers);
  head_.unit = &add_unit("language.head", language_group_);
  head_.norm = add_norm(*head_.unit, decoder + "final_layer_norm", t.hidden, t.norm_eps);
  head_.weight_unit = t.tied ? text_embeddings_ : head_.unit;
  const std::string head = "language_model.lm_head.weight";
  if (t.tied) text_embeddings_->add_alias(decoder + "embed_tokens.weight", head);
  head_.output = {.in = t.hidden, .out = t.vocabulary, .parts = {{0, t.vocabulary}}};
  head_.output.weight =
      t.tied ? token_table_ : head_.unit->add(head, {t.vocabulary, t.hidden}, Init::normal(t.init_std));
  lora_.attach(*head_.unit, {{&head_.output, {"language_model.lm_head"}}});
}

Tensor Blip2::patches_of(const StepContext& context, const MicroBatch& batch) const {
  const int64_t b = batch.samples;
  Taken rows(context, "patches", settings_.compute, {b * patches(), patch_embedding_.in});
  Patchify args{.pixels = batch.pixels, .patch = config_.vision.patch, .patches = rows};
  std::copy_n(batch.pixel_statistics.mean, 3, args.mean);
  std::copy_n(batch.pixel_statistics.std, 3, args.std);
  context.ops.patchify(args, context.stream);
  return rows.keep();
}

// The tower's output [B * V, E] before the post norm; `save` keeps what backward needs.
Tensor Blip2::vision_forward(const StepContext& context, const MicroBatch& batch, bool save) {
  const int64_t b = batch.samples, e = config_.vision.hidden;
  Taken x(context, "residual stream", settings_.compute, {b * (1 + patches()), e});
  {
    const Tensor flat = context.units.acquire(*vision_embeddings_);
    const ObservedPhase phase(context, Phase::forward, *vision_embeddings_);
    Tensor rows = patches_of(context, batch);
    Taken embedded(context, "patches", settings_.compute, {b * patches(), e});
    patch_embedding_.forward({context, flat}, {.x = rows, .y = embedded});
    context.ops.vision_embed_forward({.patches = embedded, .class_embedding = flat.part(class_embedding_, {e}),
                                      .positions = flat.part(vision_positions_, {1 + patches(), e}), .x = x},
                                     context.stream);
    give(context, rows);
    context.units.release(*vision_embeddings_);
  }
  return vision_.forward(context, {b, 1 + patches(), {}, batch.sample_keys}, x.keep(), save);
}

void Blip2::vision_backward(const StepContext& context, const MicroBatch& batch, Tensor dpicture) {
  const int64_t b = batch.samples, e = config_.vision.hidden;
  {
    const Tensor flat = context.units.acquire(*vision_norm_unit_);
    const ObservedPhase phase(context, Phase::backward, *vision_norm_unit_);
    const UnitGradient gradient = context.units.gradient(*vision_norm_unit_);
    context.ops.norm_backward({.dy = dpicture, .x = vision_out_, .mean = picture_.mean, .rstd = picture_.rstd,
                               .gamma = vision_norm_.g(flat), .dgamma = vision_norm_.g(gradient.flat),
                               .dbeta = vision_norm_.b(gradient.flat), .accumulate = gradient.accumulate,
                               .dx = dpicture},
                              context.stream);
    give(context, picture_);
    give(context, vision_out_);
    context.units.release(*vision_norm_unit_);
    context.units.publish(*vision_norm_unit_);
  }
  Tensor dx = vision_.backward(context, {b, 1 + patches(), {}, batch.sample_keys}, dpicture);
  const ObservedPhase phase(context, Phase::backward, *vision_embeddings_);
  const UnitGradient gradient = context.units.gradient(*vision_embeddings_);
  Taken dembedded(context, "patches", settings_.compute, {b * patches(), e});
  context.ops.vision_embed_backward({.patches = dembedded, .class_embedding = gradient.flat.part(class_embedding_, {e}),
                                     .positions = gradient.flat.part(vision_positions_, {1 + patches(), e}), .x = dx,
                                     .accumulate = gradient.accumulate, .parameters = true},
                                    context.stream);
  give(context, dx);
  Tensor rows = patches_of(context, batch);
  UnitBackward pass({context, {}}, {gradient, {}});  // the weight itself is not read: pictures have no gradient
  patch_embedding_.weight_gradient(pass, dembedded, rows);
  pass.keep(rows);
  pass.join();
  context.units.publish(*vision_embeddings_);
}

// The queries, projected into the language model's space: [B * Q, H].
Tensor Blip2::project_forward(const StepContext& context, const Tensor& queries) {
  const Tensor flat = context.units.acquire(*projection_unit_);
  const ObservedPhase phase(context, Phase::forward, *projection_unit_);
  Taken prefix(context, "picture prefix", settings_.compute, {queries.rows(), config_.text.hidden});
  projection_.forward({context, flat}, {.x = queries, .y = prefix});
  context.units.release(*projection_unit_);
  return prefix.keep();
}

// The gradient of the queries, or nothing when nobody wants it.
Tensor Blip2::project_backward(const StepContext& context, Tensor dprefix) {
  const UnitPass unit_pass = acquire(context, *projection_unit_);
  const ObservedPhase phase(context, Phase::backward, *projection_unit_);
  UnitBackward pass(unit_pass, gradients(context, *projection_unit_));
  Tensor dqueries;
  if (into_qformer()) {
    dqueries = context.arena.take(Owner::activations, "gradients", settings_.compute,
                                  {dprefix.rows(), config_.qformer.hidden});
    projection_.input_gradient(pass, {.dy = dprefix, .dx = dqueries});
  }
  projection_.weight_gradient(pass, dprefix, queries_);
  pass.keep(dprefix);
  pass.keep(queries_);
  queries_ = {};
  pass.join();
  release(context, *projection_unit_);
  publish(context, *projection_unit_);
  return dqueries;
}

TextEmbed Blip2::text_embed(const MicroBatch& batch) const {
  return {.ids = batch.ids, .lengths = batch.lengths, .prefix_rows = config_.qformer.queries,
          .padding_id = config_.text.padding_id, .packing = batch.packing};
}

Tensor Blip2::embed_forward(const StepContext& context, const MicroBatch& batch, Tensor prefix) {
  const Blip2Config::Text& t = config_.text;
  const Tensor flat = context.units.acquire(*text_embeddings_);
  const ObservedPhase phase(context, Phase::forward, *text_embeddings_);
  Taken x(context, "residual stream", settings_.compute, {batch.rows, t.hidden});
  TextEmbed args = text_embed(batch);
  args.prefix = prefix;
  args.tokens = flat.part(token_table_, {t.vocabulary, t.hidden});
  args.positions = flat.part(position_table_, {t.positions + kPositionOffset, t.hidden});
  args.x = x;
  context.ops.text_embed_forward(args, context.stream);
  give(context, prefix);
  context.units.release(*text_embeddings_);
  return x.keep();
}

// Takes dx over; the gradient of the prefix, or nothing when nobody wants it.
Tensor Blip2::embed_backward(const StepContext& context, const MicroBatch& batch, Tensor dx) {
  if (!into_prefix() && !train_language_) {  // adapters alone are trained
    give(context, dx);
    return {};
  }
  const ObservedPhase phase(context, Phase::backward, *text_embeddings_);
  const Blip2Config::Text& t = config_.text;
  TextEmbed args = text_embed(batch);
  args.x = dx;
  if (into_prefix())
    args.prefix = context.arena.take(Owner::activations, "gradients", settings_.compute,
                                     {batch.samples * config_.qformer.queries, t.hidden});
  if (train_language_) {
    const UnitGradient gradient = context.units.gradient(*text_embeddings_);
    args.tokens = gradient.flat.part(token_table_, {t.vocabulary, t.hidden});
    args.positions = gradient.flat.part(position_table_, {t.positions + kPositionOffset, t.hidden});
    args.accumulate_tokens = args.accumulate_positions = gradient.accumulate;
  }
  context.ops.text_embed_backward(args, context.stream);
  give(context, dx);
  if (train_language_) context.units.publish(*text_embeddings_);
  return args.prefix;
}

PreNormLayer::Call Blip2::language_call(const MicroBatch& batch) const {
  return {batch.samples, batch.most_rows, batch.key_lengths, batch.sample_keys, batch.packing};
}

// Each text row predicts the next one: a sample's last row has nothing to predict.
RowBlocks Blip2::predicting(const MicroBatch& batch) const {
  const int64_t q = config_.qformer.queries;
  return {.block_rows = batch.most_rows, .offset = q, .count = batch.most_rows - q - 1, .packing = batch.packing};
}

// What the head reads [M, H]; `save` keeps what backward needs.
Tensor Blip2::forward(const StepContext& context, const MicroBatch& batch, bool save) {
  const bool save_vision = save && train_vision_, save_qformer = save && into_qformer();
  context.arena.mark("before_forward");
  vision_out_ = vision_forward(context, batch, save_vision);
  {
    const Tensor flat = context.units.acquire(*vision_norm_unit_);
    const ObservedPhase phase(context, Phase::forward, *vision_norm_unit_);
    picture_ = take_norm(context, vision_norm_, flat, vision_out_);
    context.units.release(*vision_norm_unit_);
  }
  if (!save_vision) give(context, vision_out_);
  queries_ = qformer_.forward(context, {batch.samples, 1 + patches(), picture_.y, batch.sample_keys}, save_qformer);
  if (!save_qformer) give(context, picture_);
  Tensor x = embed_forward(context, batch, project_forward(context, queries_));
  if (!save || !into_prefix()) give(context, queries_);
  x = language_.forward(context, language_call(batch), x, save);
  context.arena.mark("after_forward");
  return x;
}

void Blip2::forward_loss(const StepContext& context, const MicroBatch& batch) {
  StepContext evaluation = context;
  evaluation.training = false;
  const Tensor x = forward(evaluation, batch, false);
  head_.forward_loss(evaluation, x, predicting(batch), batch);
}

void Blip2::forward_backward(const StepContext& context, const MicroBatch& batch) {
  const Tensor x = forward(context, batch, true);
  Tensor dx = head_.forward_backward(context, x, predicting(batch), batch);
  dx = language_.backward(context, language_call(batch), dx);
  Tensor dprefix = embed_backward(context, batch, dx);
  Tensor dqueries;
  if (into_prefix()) dqueries = project_backward(context, dprefix);
  if (into_qformer()) {
    Tensor dpicture;
    if (train_vision_)
      dpicture = context.arena.take(Owner::activations, "gradients", settings_.compute, picture_.y.shape);
    qformer_.backward(context, {batch.samples, 1 + patches(), picture_.y, batch.sample_keys}, dqueries, dpicture);
    give(context, picture_.y);
    if (train_vision_) vision_backward(context, batch, dpicture);
    else give(context, picture_);
  }
  context.arena.mark("after_backward");
}

Blip2::Cost Blip2::cost_of(const Unit& unit, int64_t batch_size, double text_rows) const {
  const Blip2Config::Vision& v = config_.vision;
  const Blip2Config::Text& t = config_.text;
  const double b = static_cast<double>(batch_size), queries = b * static_cast<double>(config_.qformer.queries);
  const double picture_rows = static_cast<double>(1 + patches());
  const double language_rows = static_cast<double>(config_.qformer.queries) + text_rows;
  if (&unit == vision_embeddings_)
    return {2 * b * static_cast<double>(patches()) * static_cast<double>(patch_embedding_.in * v.hidden),
            train_vision_, false};
  for (const PreNormLayer& layer : vision_.layers)
    if (layer.unit == &unit)
      return {layer.forward_flops(batch_size, picture_rows), train_vision_, train_vision_,
              layer.recompute_flops(batch_size, picture_rows)};
  for (const QFormerLayer& layer : qformer_.layers)
    if (layer.unit == &unit) {
      const double forward = layer.forward_flops(batch_size, 1 + patches());
      return {forward, train_qformer_, into_qformer(), forward};
    }
  if (&unit == projection_unit_)
    return {2 * queries * static_cast<double>(config_.qformer.hidden * t.hidden), train_projection_,
            into_qformer()};
  for (const PreNormLayer& layer : language_.layers)
    if (layer.unit == &unit)
      return {layer.forward_flops(batch_size, language_rows), train_language_, true,
              layer.recompute_flops(batch_size, language_rows)};
  if (&unit == head_.unit)
    return {2 * b * (text_rows - 1) * static_cast<double>(t.hidden * t.vocabulary),
            train_language_, true};
  return {};                               // embeddings and norms have no matrix product
}

double Blip2::unit_flops(const Unit& unit, Phase phase, int64_t batch_size, double text_rows) const {
  const Cost cost = cost_of(unit, batch_size, text_rows);
  const double backward = cost.forward * ((cost.trained ? 1 : 0) + (cost.passes ? 1 : 0));
  if (&unit == head_.unit) return phase == Phase::loss ? cost.forward + backward : 0;
  switch (phase) {
    case Phase::forward: return cost.forward;
    case Phase::recompute: return cost.recompute;
    case Phase::backward: return backward;
    case Phase::loss: break;
  }
  return 0;
}

}  // namespace

std::unique_ptr<Model> make_blip2(const std::string& config_file, const ModelSettings& settings) {
  Blip2Config config = Blip2Config::read(config_file);
  check_dropout(config_file, "vision_config.attention_dropout", config.vision.attention_dropout, settings.dropout);
  check_dropout(config_file, "text_config.attention_dropout", config.text.attention_dropout, settings.dropout);
  if (settings.untied_head) config.text.tied = false;
  return std::make_unique<Blip2>(config, settings);
}

}  // namespace blipft
