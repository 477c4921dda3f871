// Implements BLIP-2 and related models; see blip_model.h.
//
// Dimension legend: B samples; V picture tokens, E vision hidden size; Q queries, D Q-Former hidden size; M rows of the
// language model in total, H its hidden size.
#include "models/families/picture/blip_model.h"

#include "models/config_checks.h"
#include "models/families/text/t5.h"
#include "models/language/picture_projection.h"

namespace blipft {

namespace {

constexpr uint32_t kQFormerSites = 1000, kLanguageSites = 2000;  // first dropout sites; each site has a unique number

// Functions that depend on the type of the language model.

struct LanguagePlacement {
  std::string root = "language_model.", units = "language.";
  uint32_t dropout_site = kLanguageSites;
};
using AddUnit = std::function<Unit&(const std::string& name)>;

std::unique_ptr<Language> make_language(const OptShape& shape, const LanguagePlacement& placement, const ModelSettings& settings,
                                        const AddUnit& add, LoraBuilder& lora) {
  return std::make_unique<LanguageModel>(
      make_opt(shape, {placement.root, placement.units, placement.dropout_site}, settings, add, lora));
}
std::unique_ptr<Language> make_language(const DecoderConfig& config, const LanguagePlacement& placement, const ModelSettings& settings,
                                        const AddUnit& add, LoraBuilder& lora) {
  return std::make_unique<LanguageModel>(
      make_decoder_language(config,
                            {placement.root + "model.", placement.root + "lm_head", placement.units, placement.dropout_site},
                            settings, add, lora));
}
std::unique_ptr<Language> make_language(const T5Config& config, const LanguagePlacement& placement, const ModelSettings& settings,
                                        const AddUnit& add, LoraBuilder& lora) {
  return std::make_unique<EncoderDecoder>(
      make_t5(config, {placement.root, placement.units, placement.dropout_site}, settings,
              [&](T5Part, const std::string& name) -> Unit& { return add(name); }, lora));
}

ModelInputs text_inputs(const OptShape& shape, int64_t queries) {
  return {.text = {.vocabulary = shape.vocabulary, .max_tokens = shape.positions - queries, .first_rows = queries,
                   .key_lengths = true}};
}
ModelInputs text_inputs(const DecoderConfig& config, int64_t queries) {
  return {.text = {.vocabulary = config.vocabulary, .max_tokens = config.max_text_tokens - queries, .first_rows = queries,
                   .position_axes = 1, .key_lengths = true}};
}
ModelInputs text_inputs(const T5Config& config, int64_t queries) {
  ModelInputs inputs = t5_inputs(config);
  inputs.source.first_rows = queries;
  return inputs;
}

std::string name_of(const OptShape&) { return "OPT"; }
std::string name_of(const DecoderConfig& config) { return config.model_type; }
std::string name_of(const T5Config&) { return "T5"; }

class BlipModel : public Model {
 public:
  BlipModel(const BlipConfig& config, const ModelSettings& settings)
      : config_(config), compute_(settings.compute), vision_group_(add_group(settings, "vision")),
        qformer_group_(add_group(settings, "qformer")),
        projection_group_(add_group(settings, "language_projection")),
        language_group_(add_group(settings, "language")), adapter_group_(add_adapter_group(settings)),
        lora_(settings.adapter, {"language_model."}, units_of(adapter_group_)),
        vision_(config.vision, "vision_model.", settings, units_of(&vision_group_)),
        qformer_(config.qformer, kQFormerSites, settings, units_of(&qformer_group_), lora_) {
    projection_.unit = &add_unit("language_projection", projection_group_);
    const int64_t hidden = std::visit([](const auto& language) { return language.hidden; }, config.language);
    projection_.layer = add_linear(*projection_.unit, "language_projection", config.qformer.hidden, hidden, true,
                                   config.qformer.init_std);
    language_ = std::visit(
        [&](const auto& language) { return make_language(language, {}, settings, units_of(&language_group_), lora_); },
        config.language);
    language_->first_rows = config.qformer.queries;
    lora_.check();
    label_rows_ = language_->head.dropout || (language_->head.unit->adapter && settings.adapter.dropout > 0);
  }

  std::string description() const override {
    const auto language = [](const auto& of) { return concat(name_of(of), " ", of.layers, " x ", of.hidden); };
    return concat(config_.family, " (vision ", config_.vision.layers, " x ", config_.vision.hidden, ", Q-Former ",
                  config_.qformer.layers, " x ", config_.qformer.hidden, ", ", std::visit(language, config_.language), ")");
  }
  ModelInputs inputs() const override {
    const int64_t queries = config_.qformer.queries;
    ModelInputs inputs = std::visit([&](const auto& language) { return text_inputs(language, queries); }, config_.language);
    inputs.picture_size = config_.vision.image;
    inputs.text.label_rows = label_rows_;
    if (const InstructionShape& instruction = config_.qformer.instruction)
      inputs.instruction = {.vocabulary = instruction.vocabulary, .max_tokens = instruction.positions, .first_rows = queries,
                            .position_axes = 1, .key_lengths = true, .splits_text = true, .tokenizer = "qformer_tokenizer"};
    return inputs;
  }

  void forward_backward(const StepContext& context, const MicroBatch& batch) override;
  void forward_loss(const StepContext& context, const MicroBatch& batch) override {
    StepContext evaluation = context;
    evaluation.training = false;
    language_->loss(evaluation, batch, forward(evaluation, batch, false));
  }
  std::vector<int64_t> cache_widths() const override { return language_->cache_widths(); }
  std::vector<int64_t> memory_widths() const override { return language_->memory_widths(); }
  Tensor read_prompts(const StepContext& context, const MicroBatch& batch, const CacheCall& cache) override {
    return language_->read_prompts(context, batch, compute_, picture_rows(context, batch, false), cache);
  }
  Tensor decode(const StepContext& context, const CacheCall& cache) override {
    return language_->decode(context, compute_, cache);
  }
  double unit_flops(const Unit& unit, Phase phase, int64_t batch_size, const TextRows& text_rows) const override;

 private:
  // True if backward continues into the Q-Former, and into the projection after it.
  bool into_qformer() const { return vision_group_.trained || qformer_.trained(); }
  bool into_projection() const { return into_qformer() || projection_group_.trained; }
  std::function<Unit&(const std::string&)> units_of(const ParameterGroup* group) {
    return [this, group](const std::string& name) -> Unit& { return add_unit(name, *group); };
  }
  Tensor picture_rows(const StepContext& context, const MicroBatch& batch, bool save);
  Tensor forward(const StepContext& context, const MicroBatch& batch, bool save);

  BlipConfig config_;
  DType compute_;
  const ParameterGroup &vision_group_, &qformer_group_, &projection_group_, &language_group_;
  const ParameterGroup* adapter_group_;
  LoraBuilder lora_;
  Vit vision_;
  QFormer qformer_;
  PictureProjection projection_;
  std::unique_ptr<Language> language_;
  bool label_rows_ = false;

  // Saved for backward.
  Tensor picture_, queries_;               // [B * V, E], input of the Q-Former; [B * Q, D], its output
};

// Returns the first rows of each sample [B * Q, H], owned by the caller; `save` keeps what backward needs.
Tensor BlipModel::picture_rows(const StepContext& context, const MicroBatch& batch, bool save) {
  picture_ = vision_.forward(context, batch, save && vision_group_.trained);
  queries_ = qformer_.forward(context, batch, picture_, save && into_qformer());
  if (!save || !into_qformer()) give(context, picture_);
  const Tensor rows = projection_.forward(context, queries_);
  if (!save || !into_projection()) give(context, queries_);
  return rows;
}

// Returns the head's input [M, H]; `save` keeps what backward needs.
Tensor BlipModel::forward(const StepContext& context, const MicroBatch& batch, bool save) {
  context.arena.mark("before_forward");
  const Tensor rows = picture_rows(context, batch, save);
  const bool keep = save && language_->trains_below_head(into_projection());
  const Tensor x = language_->forward(context, batch, compute_, rows, keep, into_projection());
  context.arena.mark("after_forward");
  return x;
}

void BlipModel::forward_backward(const StepContext& context, const MicroBatch& batch) {
  const Tensor x = forward(context, batch, true);
  const Tensor dpictures = language_->loss_and_backward(context, batch, x, into_projection());
  Tensor dqueries;
  if (into_projection()) dqueries = projection_.backward(context, dpictures, std::exchange(queries_, {}), into_qformer());
  if (into_qformer()) {
    Tensor dpicture;
    if (vision_group_.trained) dpicture = take(context, "gradients", compute_, picture_.shape);
    qformer_.backward(context, batch, picture_, dqueries, dpicture);
    give(context, picture_);
    if (vision_group_.trained) vision_.backward(context, batch, dpicture);
  }
  context.arena.mark("after_backward");
}

double BlipModel::unit_flops(const Unit& unit, Phase phase, int64_t batch_size, const TextRows& text_rows) const {
  const bool instructed = static_cast<bool>(config_.qformer.instruction);
  const double instruction = instructed ? inputs().instruction_rows(text_rows) : 0;
  if (const auto flops = vision_.unit_flops(unit, phase, batch_size)) return *flops;
  if (const auto flops = qformer_.unit_flops(unit, phase, batch_size, config_.vision.tokens(), into_qformer(),
                                             vision_group_.trained, instruction))
    return *flops;
  if (const auto flops = language_->unit_flops(unit, phase, batch_size, text_rows, into_projection())) return *flops;
  if (&unit != projection_.unit) return 0;
  return projection_.flops(phase, batch_size * config_.qformer.queries, into_qformer());
}

void check_attention_dropout(const DecoderConfig& config, const std::string& file, bool dropout) {
  check_dropout(file, "text_config.attention_dropout", config.attention_dropout, dropout);
}
void check_attention_dropout(const OptShape& shape, const std::string& file, bool dropout) {
  check_dropout(file, "text_config.attention_dropout", shape.attention_dropout, dropout);
}
void check_attention_dropout(const T5Config&, const std::string&, bool) {}  // T5 supports attention dropout

}  // namespace

std::unique_ptr<Model> make_blip_model(BlipConfig config, const std::string& config_file, const ModelSettings& settings) {
  check_dropout(config_file, "vision_config.attention_dropout", config.vision.attention_dropout, settings.dropout);
  std::visit(
      [&](auto& language) {
        check_attention_dropout(language, config_file, settings.dropout);
        if (settings.untied_head) language.tied = false;
      },
      config.language);
  return std::make_unique<BlipModel>(config, settings);
}

}  // namespace blipft
