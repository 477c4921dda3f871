// Generation: model, weights, memory and decode program of a rank that generates texts.
#pragma once

#include <memory>
#include <string>

#include "blipft/comm.h"
#include "blipft/text.h"
#include "checkpoint/content_check.h"
#include "generate/generation_model.h"
#include "generate/generator.h"
#include "plan/memory_plan.h"

namespace blipft {

class Generation {
 public:
  /// Reads config.json and the tokenizer, but no weights. Called by all ranks.
  Generation(const GenerationSource& source, const World& world);
  ~Generation();

  const GenerationModel& model() const { return *model_; }
  const Config& config() const { return model_->config(); }  ///< the config of the weights that generate
  const Tokenizer& tokenizer() const { return *model_->tokenizer; }
  const ModelInputs& inputs() const { return model_->inputs; }
  const GenerateSettings& settings() const { return model_->settings; }

  /// Selects the number of slots, allocates the memory and loads the weights. Called by all ranks. Throws UserError if
  /// it does not fit.
  void load(const TextsToGenerate& work);
  /// Generates this rank's texts.
  void run(const GeneratorCalls& calls);
  /// Scores a group of texts for which fits() is true: see DecodeProgram::score(). If the weights are sharded, all
  /// ranks call it for the same number of groups; a group may be empty.
  std::vector<TextLikelihood> score(std::span<const BatchSample> texts, std::span<const uint8_t* const> pixels);
  bool fits(int64_t texts, int64_t ids) const { return engine_->decoder->fits(texts, ids); }
  /// Returns true if `mine` is true on any rank that runs the same collectives: any rank under fsdp, else this one.
  bool any(bool mine) const { return plan_.strategy == StrategyKind::fsdp ? world_.any(mine ? 1 : 0) != 0 : mine; }
  const CommGroups* groups() const { return groups_.get(); }  ///< null unless the weights are sharded over the ranks
  int64_t tokens() const { return tokens_; }  ///< new tokens of this rank so far
  double step_milliseconds() const { return step_ms_; }  ///< step time of the last run(); 0 if unknown
  int64_t slots() const { return plan_.decoding->slots; }
  /// Returns one line: device, strategy, slots, memory.
  std::string text() const;

 private:
  void choose(const TextsToGenerate& work);
  void load_weights();
  void begin_round(Activity::Phase phase);

  const World& world_;
  std::unique_ptr<GenerationModel> model_;
  PixelStatistics pixel_statistics_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Comm> self_;
  std::unique_ptr<CommGroups> groups_;     // null unless the weights are sharded over the ranks
  MemoryPlan plan_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Engine> engine_;
  std::vector<WeightFiles> weight_files_;  // the files that were read, until load() has compared them
  int64_t tokens_ = 0;
  double step_ms_ = 0;
};

}  // namespace blipft
