// BLIP-2 (Li et al. 2023): a vision tower, a Q-Former that reads it, and a language model that continues from what the
// Q-Former read: OPT, or T5, whose encoder reads it before the prompt.
//
// Parameter groups: vision, qformer, language_projection, language.
//
// Dimension legend: B samples; V picture tokens, E vision hidden size; Q queries, D Q-Former hidden size; M rows of the
// language model in all, H its hidden size.
#include "models/families/blip2.h"

#include "models/blocks/prefix_projection.h"
#include "models/config_checks.h"
#include "models/families/blip2_config.h"
#include "models/families/t5.h"

namespace blipft {

namespace {

constexpr uint32_t kQFormerSites = 1000, kLanguageSites = 2000;  // dropout sites: one number per place in the model

class Blip2 : public Model {
 public:
  Blip2(const Blip2Config& config, const ModelSettings& settings)
      : config_(config), compute_(settings.compute), vision_group_(add_group(settings, "vision")),
        qformer_group_(add_group(settings, "qformer")),
        projection_group_(add_group(settings, "language_projection")),
        language_group_(add_group(settings, "language")), adapter_group_(add_adapter_group(settings)),
        lora_(settings.adapter, "language_model.", units_of(adapter_group_)),
        vision_(config.vision, "vision_model.", settings, units_of(&vision_group_)),
        qformer_(config.qformer, kQFormerSites, settings, units_of(&qformer_group_)) {
    projection_.unit = &add_unit("language_projection", projection_group_);
    projection_.layer = add_linear(*projection_.unit, "language_projection", config.qformer.hidden, config.text_hidden(), true,
                             config.qformer.init_std);
    language_ = make_language(settings);
    lora_.check();
    label_rows_ = language_->head.dropout || (language_->head.unit->adapter && settings.adapter.dropout > 0);
  }

  std::string description() const override {
    return concat(config_.t5 ? "blip2-t5" : "blip2-opt", " (vision ", config_.vision.layers, " x ", config_.vision.hidden,
                  ", Q-Former ", config_.qformer.layers, " x ", config_.qformer.hidden, config_.t5 ? ", T5 " : ", OPT ",
                  config_.t5 ? config_.t5->layers : config_.text.layers, " x ", config_.text_hidden(), ")");
  }
  ModelInputs inputs() const override {
    const int64_t queries = config_.qformer.queries;
    ModelInputs inputs{.picture_size = config_.vision.image, .prefix_rows = queries,
                       .max_text_tokens = config_.text.positions - queries, .vocabulary = config_.text.vocabulary,
                       .key_lengths = true, .label_rows = label_rows_};
    if (config_.t5)
      inputs.max_text_tokens = kMostWidth, inputs.vocabulary = config_.t5->vocabulary,
      inputs.decoder_start = config_.t5->decoder_start;
    return inputs;
  }

  void forward_backward(const StepContext& context, const MicroBatch& batch) override;
  void forward_loss(const StepContext& context, const MicroBatch& batch) override;
  std::vector<int64_t> cache_widths() const override { return language_->cache_widths(); }
  std::vector<int64_t> memory_widths() const override { return language_->memory_widths(); }
  Tensor read_prompts(const StepContext& context, const MicroBatch& batch, const CacheCall& cache) override;
  Tensor decode(const StepContext& context, const CacheCall& cache) override {
    return language_->decode(context, compute_, cache);
  }
  double unit_flops(const Unit& unit, Phase phase, int64_t batch_size, const TextRows& text_rows) const override;

 private:
  // How far backward goes: out of the language model into the projection, and from there into the Q-Former.
  bool into_qformer() const { return vision_group_.trained || qformer_group_.trained; }
  bool into_prefix() const { return into_qformer() || projection_group_.trained; }
  std::function<Unit&(const std::string&)> units_of(const ParameterGroup* group) {
    return [this, group](const std::string& name) -> Unit& { return add_unit(name, *group); };
  }
  std::unique_ptr<Language> make_language(const ModelSettings& settings);
  Tensor forward(const StepContext& context, const MicroBatch& batch, bool save);

  Blip2Config config_;
  DType compute_;
  const ParameterGroup &vision_group_, &qformer_group_, &projection_group_, &language_group_;
  const ParameterGroup* adapter_group_;
  LoraBuilder lora_;
  Vit vision_;
  QFormer qformer_;
  PrefixProjection projection_;
  std::unique_ptr<Language> language_;
  bool label_rows_ = false;

  // Saved for backward.
  Tensor picture_, queries_;               // [B * V, E], what the Q-Former reads; [B * Q, D], what it gives
};

std::unique_ptr<Language> Blip2::make_language(const ModelSettings& settings) {
  const std::function<Unit&(const std::string&)> add = units_of(&language_group_);
  const std::string root = "language_model.", units = "language.";
  const int64_t queries = config_.qformer.queries;
  if (!config_.t5)
    return std::make_unique<LanguageModel>(
        make_opt(config_.text, {root, units, kLanguageSites, queries}, settings, add, lora_));
  return std::make_unique<EncoderDecoder>(
      make_t5(*config_.t5, {root, units, kLanguageSites, queries}, settings,
              [&](T5Part, const std::string& name) -> Unit& { return add(name); }, lora_));
}

// What the head reads [M, H]; `save` keeps what backward needs.
Tensor Blip2::forward(const StepContext& context, const MicroBatch& batch, bool save) {
  context.arena.mark("before_forward");
  picture_ = vision_.forward(context, batch, save && vision_group_.trained);
  queries_ = qformer_.forward(context, batch, picture_, save && into_qformer());
  if (!save || !into_qformer()) give(context, picture_);
  const Tensor prefix = projection_.forward(context, queries_);
  const Tensor x = language_->forward(context, batch, compute_, prefix, save && language_->trains_below_head(into_prefix()),
                                      into_prefix());
  if (!save || !into_prefix()) give(context, queries_);
  context.arena.mark("after_forward");
  return x;
}

Tensor Blip2::read_prompts(const StepContext& context, const MicroBatch& batch, const CacheCall& cache) {
  Tensor picture = vision_.forward(context, batch, false);
  Tensor queries = qformer_.forward(context, batch, picture, false);
  give(context, picture);
  const Tensor prefix = projection_.forward(context, queries);
  give(context, queries);
  return language_->read_prompts(context, batch, compute_, prefix, cache);
}

void Blip2::forward_loss(const StepContext& context, const MicroBatch& batch) {
  StepContext evaluation = context;
  evaluation.training = false;
  language_->loss(evaluation, batch, forward(evaluation, batch, false));
}

void Blip2::forward_backward(const StepContext& context, const MicroBatch& batch) {
  const Tensor x = forward(context, batch, true);
  const Tensor dprefix = language_->loss_and_backward(context, batch, x, into_prefix());
  Tensor dqueries;
  if (into_prefix()) dqueries = projection_.backward(context, dprefix, std::exchange(queries_, {}), into_qformer());
  if (into_qformer()) {
    Tensor dpicture;
    if (vision_group_.trained) dpicture = take(context, "gradients", compute_, picture_.shape);
    qformer_.backward(context, batch, picture_, dqueries, dpicture);
    give(context, picture_);
    if (vision_group_.trained) vision_.backward(context, batch, dpicture);
  }
  context.arena.mark("after_backward");
}

double Blip2::unit_flops(const Unit& unit, Phase phase, int64_t batch_size, const TextRows& text_rows) const {
  if (const auto flops = vision_.unit_flops(unit, phase, batch_size)) return *flops;
  if (const auto flops = qformer_.unit_flops(unit, phase, batch_size, config_.vision.tokens(), into_qformer(),
                                             vision_group_.trained))
    return *flops;
  if (const auto flops = language_->unit_flops(unit, phase, batch_size, text_rows, into_prefix())) return *flops;
  if (&unit != projection_.unit) return 0;
  return projection_.flops(phase, batch_size * config_.qformer.queries, into_qformer());
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
