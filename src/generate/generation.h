// Generation: a rank with all it needs to generate texts: model, weights, memory, program.
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
  /// Reads the model's description and its tokenizer; no weights yet. Called by all ranks.
  Generation(const GenerationSource& source, const World& world);
  ~Generation();

  const GenerationModel& model() const { return *model_; }
  const Config& config() const { return model_->config(); }  ///< of the weights that generate
  const Tokenizer& tokenizer() const { return *model_->tokenizer; }
  const ModelInputs& inputs() const { return model_->inputs; }
  const GenerateSettings& settings() const { return model_->settings; }

  /// Chooses how many texts grow at once, takes the memory and loads the weights. Called by all ranks; throws UserError
  /// where it does not fit.
  void load(const TextsToGenerate& work);
  /// Generates this rank's texts.
  void run(const GeneratorCalls& calls);
  /// Scores the next group of texts, of which so many are in `texts` that fits() says yes: see DecodeProgram::score(). Called
  /// by all ranks for the same number of groups where weights are cut over them; a group may be empty.
  std::vector<TextLikelihood> score(std::span<const BatchSample> texts, std::span<const uint8_t* const> pixels);
  bool fits(int64_t texts, int64_t ids) const { return engine_->decoder->fits(texts, ids); }
  /// Returns true if `mine` is true on any rank that runs the same collectives: any rank under fsdp, else this one.
  bool any(bool mine) const { return plan_.strategy == StrategyKind::fsdp ? world_.any(mine ? 1 : 0) != 0 : mine; }
  const CommGroups* groups() const { return groups_.get(); }  ///< null unless the weights are sharded over the ranks
  int64_t tokens() const { return tokens_; }  ///< new ones of this rank so far
  double step_milliseconds() const { return step_ms_; }  ///< of the last run(); 0: not known
  int64_t slots() const { return plan_.decoding->slots; }
  /// One line: device, strategy, slots, memory.
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
  std::unique_ptr<CommGroups> groups_;     // where weights are cut over the ranks
  MemoryPlan plan_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Engine> engine_;
  std::vector<WeightFiles> weight_files_;  // that were read; until load() has compared them
  int64_t tokens_ = 0;
  double step_ms_ = 0;
};

}  // namespace blipft
