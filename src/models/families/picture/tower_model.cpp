// Implements models of texts with pictures anywhere; see tower_model.h.
//
// Dimension legend: N picture rows, M rows of the language model in total, H its hidden size.
#include "models/families/picture/tower_model.h"

#include <utility>

#include "models/config_checks.h"

namespace blipft {

namespace {

const DecoderPlacement kLanguage{"model.language_model.", "lm_head", "language."};

class TowerModel : public Model {
 public:
  TowerModel(TowerModelConfig config, const ModelSettings& settings, const MakeTower& make_tower)
      : config_(std::move(config)), compute_(settings.compute), vision_group_(add_group(settings, "vision")),
        merger_group_(add_group(settings, "merger")), language_group_(add_group(settings, "language")),
        adapter_group_(add_adapter_group(settings)),
        lora_(settings.adapter, {kLanguage.body, kLanguage.head}, units_of(adapter_group_), true),
        tower_(make_tower({settings, units_of(&vision_group_), units_of(&merger_group_), lora_})),
        language_(make_decoder_language(config_.language, kLanguage, settings, units_of(&language_group_), lora_)) {
    lora_.check();
    label_rows_ = language_.head.unit->adapter && settings.adapter.dropout > 0;
    add_file_names(config_.names_in_files);
  }

  std::string description() const override {
    const DecoderConfig& language = config_.language;
    return concat(language.model_type, " (", tower_->description(), ", ", language.layers, " x ", language.hidden, ", ",
                  language.heads, " heads, ", language.kv_heads, " key/value heads)");
  }
  ModelInputs inputs() const override {
    return {.text = {.vocabulary = config_.language.vocabulary, .max_tokens = config_.language.max_text_tokens, .pictures = true,
                     .picture_id = config_.picture_id, .position_axes = config_.position_axes, .key_lengths = true,
                     .label_rows = label_rows_, .last_keys = config_.last_keys},
            .patches = tower_->inputs()};
  }

  void forward_backward(const StepContext& context, const MicroBatch& batch) override {
    const bool into_tower = tower_->trained();
    const Tensor x = forward(context, batch, true);
    const Tensor dpictures = language_.loss_and_backward(context, batch, x, into_tower);
    if (into_tower) tower_->backward(context, batch, {dpictures, std::move(language_.added.of_layer)});
    context.arena.mark("after_backward");
  }
  void forward_loss(const StepContext& context, const MicroBatch& batch) override {
    StepContext evaluation = context;
    evaluation.training = false;
    language_.loss(evaluation, batch, forward(evaluation, batch, false));
  }
  std::vector<int64_t> cache_widths() const override { return language_.cache_widths(); }
  Tensor read_prompts(const StepContext& context, const MicroBatch& batch, const CacheCall& cache) override {
    return language_.read_prompts(context, batch, compute_, picture_rows(context, batch, false), cache);
  }
  Tensor decode(const StepContext& context, const CacheCall& cache) override {
    return language_.decode(context, compute_, cache);
  }
  double unit_flops(const Unit& unit, Phase phase, int64_t batch_size, const TextRows& rows) const override {
    const auto batch = static_cast<double>(batch_size);
    if (const auto flops = tower_->unit_flops(unit, phase, batch * rows.picture_rows, batch * rows.pictures)) return *flops;
    return language_.unit_flops(unit, phase, batch_size, rows, tower_->trained()).value_or(0);
  }

 private:
  std::function<Unit&(const std::string&)> units_of(const ParameterGroup* group) {
    return [this, group](const std::string& name) -> Unit& { return add_unit(name, *group); };
  }
  // Returns the pictures' rows [N, H], owned by the caller, and leaves those of deeper layers to the language model.
  Tensor picture_rows(const StepContext& context, const MicroBatch& batch, bool save) {
    PictureRows pictures = tower_->forward(context, batch, save);
    language_.added = {batch.text.row_of_picture, std::move(pictures.deeper)};
    return pictures.rows;
  }
  // Returns the head's input [M, H]; `save` keeps what backward needs.
  Tensor forward(const StepContext& context, const MicroBatch& batch, bool save) {
    context.arena.mark("before_forward");
    const bool into_tower = tower_->trained();
    const Tensor pictures = picture_rows(context, batch, save && into_tower);
    const Tensor x = language_.forward(context, batch, compute_, pictures, save && language_.trains_below_head(into_tower), into_tower);
    context.arena.mark("after_forward");
    return x;
  }

  TowerModelConfig config_;
  DType compute_;
  const ParameterGroup &vision_group_, &merger_group_, &language_group_;
  const ParameterGroup* adapter_group_;
  LoraBuilder lora_;
  std::unique_ptr<PictureTower> tower_;
  LanguageModel language_;
  bool label_rows_ = false;
};

}  // namespace

std::unique_ptr<Model> make_tower_model(TowerModelConfig config, const std::string& file, const ModelSettings& settings,
                                        const MakeTower& make_tower) {
  check_dropout(file, "text_config.attention_dropout", config.language.attention_dropout, settings.dropout);
  if (settings.untied_head) config.language.tied = false;
  return std::make_unique<TowerModel>(std::move(config), settings, make_tower);
}

}  // namespace blipft
