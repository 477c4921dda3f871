// InstructBLIP (Dai et al. 2023): BLIP-2 whose Q-Former reads the instruction, too. A vision tower, a Q-Former that
// reads picture and instruction, and a LLaMA that continues from what the Q-Former read and from the instruction.
//
// Parameter groups: vision, qformer, language_projection, language.
//
// Dimension legend: B samples; V picture tokens, E vision hidden size; Q queries, D Q-Former hidden size; M rows of the
// language model in all, H its hidden size.
#include "models/families/instructblip.h"

#include "models/blocks/prefix_projection.h"
#include "models/config_checks.h"
#include "models/families/instructblip_config.h"

namespace blipft {

namespace {

constexpr uint32_t kQFormerSites = 1000, kLanguageSites = 2000;  // dropout sites: one number per place in the model

class InstructBlip : public Model {
 public:
  InstructBlip(const InstructBlipConfig& config, const ModelSettings& settings)
      : config_(config), compute_(settings.compute), vision_group_(add_group(settings, "vision")),
        qformer_group_(add_group(settings, "qformer")),
        projection_group_(add_group(settings, "language_projection")),
        language_group_(add_group(settings, "language")), adapter_group_(add_adapter_group(settings)),
        lora_(settings.adapter, "language_model.", units_of(adapter_group_)),
        vision_(config.vision, "vision_model.", settings, units_of(&vision_group_)),
        qformer_(config.qformer, kQFormerSites, settings, units_of(&qformer_group_)) {
    projection_.unit = &add_unit("language_projection", projection_group_);
    projection_.layer = add_linear(*projection_.unit, "language_projection", config.qformer.hidden, config.text.hidden,
                                   true, config.qformer.init_std);
    const DecoderPlace place{"language_model.model.", "language_model.lm_head", "language.", kLanguageSites,
                             config.qformer.queries};
    language_ = make_decoder_language(config.text, place, settings, units_of(&language_group_), lora_);
    lora_.check();
    label_rows_ = language_.head.unit->adapter && settings.adapter.dropout > 0;
  }

  std::string description() const override {
    return concat("instructblip (vision ", config_.vision.layers, " x ", config_.vision.hidden, ", Q-Former ",
                  config_.qformer.layers, " x ", config_.qformer.hidden, ", ", config_.text.model_type, " ",
                  config_.text.layers, " x ", config_.text.hidden, ")");
  }
  ModelInputs inputs() const override {
    const InstructionShape& instruction = config_.qformer.instruction;
    return {.picture_size = config_.vision.image, .prefix_rows = config_.qformer.queries,
            .max_text_tokens = config_.text.max_text_tokens, .vocabulary = config_.text.vocabulary, .positions = true,
            .key_lengths = true, .label_rows = label_rows_,
            .instruction = {.vocabulary = instruction.vocabulary, .tokenizer = "qformer_tokenizer",
                            .prefix_rows = config_.qformer.queries, .max_tokens = instruction.positions}};
  }

  void forward_backward(const StepContext& context, const MicroBatch& batch) override;
  void forward_loss(const StepContext& context, const MicroBatch& batch) override {
    StepContext evaluation = context;
    evaluation.training = false;
    language_.loss(evaluation, batch, forward(evaluation, batch, false));
  }
  std::vector<int64_t> cache_widths() const override { return language_.layers.cache_widths(); }
  Tensor read_prompts(const StepContext& context, const MicroBatch& batch, const CacheCall& cache) override {
    return language_.read_prompts(context, batch, compute_, prefix(context, batch, false), cache);
  }
  Tensor decode(const StepContext& context, const CacheCall& cache) override {
    return language_.decode(context, compute_, cache);
  }
  double unit_flops(const Unit& unit, Phase phase, int64_t batch_size, const TextRows& text_rows) const override;

 private:
  // How far backward goes: out of the language model into the projection, and from there into the Q-Former.
  bool into_qformer() const { return vision_group_.trained || qformer_group_.trained; }
  bool into_prefix() const { return into_qformer() || projection_group_.trained; }
  std::function<Unit&(const std::string&)> units_of(const ParameterGroup* group) {
    return [this, group](const std::string& name) -> Unit& { return add_unit(name, *group); };
  }
  Tensor prefix(const StepContext& context, const MicroBatch& batch, bool save);
  Tensor forward(const StepContext& context, const MicroBatch& batch, bool save);

  InstructBlipConfig config_;
  DType compute_;
  const ParameterGroup &vision_group_, &qformer_group_, &projection_group_, &language_group_;
  const ParameterGroup* adapter_group_;
  LoraBuilder lora_;
  Vit vision_;
  QFormer qformer_;
  PrefixProjection projection_;
  LanguageModel language_;
  bool label_rows_ = false;

  // Saved for backward.
  Tensor picture_, queries_;               // [B * V, E], what the Q-Former reads; [B * Q, D], what it gives
};

// What stands before the texts [B * Q, H], the caller's; `save` keeps what backward needs.
Tensor InstructBlip::prefix(const StepContext& context, const MicroBatch& batch, bool save) {
  picture_ = vision_.forward(context, batch, save && vision_group_.trained);
  queries_ = qformer_.forward(context, batch, picture_, save && into_qformer());
  if (!save || !into_qformer()) give(context, picture_);
  const Tensor rows = projection_.forward(context, queries_);
  if (!save || !into_prefix()) give(context, queries_);
  return rows;
}

// What the head reads [M, H]; `save` keeps what backward needs.
Tensor InstructBlip::forward(const StepContext& context, const MicroBatch& batch, bool save) {
  context.arena.mark("before_forward");
  const Tensor rows = prefix(context, batch, save);
  const bool keep = save && language_.trains_below_head(into_prefix());
  const Tensor x = language_.forward(context, batch, compute_, rows, keep);
  context.arena.mark("after_forward");
  return x;
}

void InstructBlip::forward_backward(const StepContext& context, const MicroBatch& batch) {
  const Tensor x = forward(context, batch, true);
  const Tensor dprefix = language_.loss_and_backward(context, batch, x, into_prefix());
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

double InstructBlip::unit_flops(const Unit& unit, Phase phase, int64_t batch_size, const TextRows& text_rows) const {
  if (const auto flops = vision_.unit_flops(unit, phase, batch_size)) return *flops;
  if (const auto flops = qformer_.unit_flops(unit, phase, batch_size, config_.vision.tokens(), into_qformer(),
                                             vision_group_.trained, text_rows.text))
    return *flops;
  if (const auto flops = language_.unit_flops(unit, phase, batch_size, text_rows, into_prefix())) return *flops;
  if (&unit != projection_.unit) return 0;
  return projection_.flops(phase, batch_size * config_.qformer.queries, into_qformer());
}

}  // namespace

std::unique_ptr<Model> make_instructblip(const std::string& config_file, const ModelSettings& settings) {
  InstructBlipConfig config = InstructBlipConfig::read(config_file);
  check_dropout(config_file, "vision_config.attention_dropout", config.vision.attention_dropout, settings.dropout);
  check_dropout(config_file, "text_config.attention_dropout", config.text.attention_dropout, settings.dropout);
  if (settings.untied_head) config.text.tied = false;
  return std::make_unique<InstructBlip>(config, settings);
}

}  // namespace blipft
