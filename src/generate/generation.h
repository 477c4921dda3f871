// Generation: a rank with all it needs to generate texts: model, weights, memory, program.
#pragma once

#include <memory>
#include <string>

#include "blipft/comm.h"
#include "blipft/data.h"
#include "engine/decode_engine.h"
#include "generate/generate_settings.h"
#include "generate/generator.h"
#include "generate/weight_source.h"

namespace blipft {

/// What there is to generate, as far as memory depends on it.
struct TextsToGenerate {
  int64_t longest_prompt = 1;              ///< ids of the longest prompt of any rank, or source of a text that is scored
  int64_t texts = 1;                       ///< of the rank that has most
  int64_t longest_text = 0;                ///< ids of the longest text that is scored; 0: none is
};

/// The program's shape for such texts with so many slots. `inputs` say what the model reads.
DecodeProgramSettings decode_settings(const GenerateSettings& settings, const ModelInputs& inputs,
                                      const TextsToGenerate& work, int64_t slots, bool gpu);

/// A dry run of generation: what it takes on a rank.
struct GenerationPlan {
  std::unique_ptr<Device> device;
  std::unique_ptr<Arena> arena;            ///< the blueprint
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Comm> all, shard, replicate;
  std::unique_ptr<DecodeEngine> engine;
  DecodeProgramSettings settings;
  std::string strategy;
};
GenerationPlan plan_generation(const Config& config, Model& model, const GroupSizes& ranks, const std::string& strategy,
                               const DecodeProgramSettings& settings, int32_t pad_id);

class Generation {
 public:
  /// Reads the model's description and its tokenizer; no weights yet. Called by all ranks.
  Generation(const Config& config, const World& world);
  ~Generation();

  const Config& config() const { return config_; }  ///< of the weights that generate
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ModelInputs& inputs() const { return inputs_; }
  const GenerateSettings& settings() const { return settings_; }
  const ImageProcessor& image_processor() const { return image_processor_; }
  /// Whether lm-eval puts the tokenizer's first tokens before a text of this model: Gemma's alone.
  bool puts_prefix() const { return puts_prefix_; }
  /// Most ids that a text may have, prompt and answer together.
  int64_t most_ids() const { return inputs_.max_text_tokens; }

  /// Chooses how many texts grow at once, takes the memory and loads the weights. Called by all ranks; throws UserError
  /// where it does not fit.
  void load(const TextsToGenerate& work);
  /// Generates this rank's texts.
  void run(const GeneratorCalls& calls);
  /// Scores the next group of texts, of which so many are in `texts` that fits() says yes: see DecodeProgram::score(). Called
  /// by all ranks for the same number of groups where weights are cut over them; a group may be empty.
  std::vector<TextLikelihood> score(std::span<const BatchSample> texts, std::span<const uint8_t* const> pixels) {
    return engine_->program.score(texts, pixels);
  }
  bool fits(int64_t texts, int64_t ids) const { return engine_->program.fits(texts, ids); }
  /// Whether this holds on any of the ranks that must do the same.
  bool any(bool mine) const { return plan_.strategy == "fsdp" ? world_.any(mine ? 1 : 0) != 0 : mine; }
  int64_t tokens() const { return tokens_; }  ///< new ones of this rank so far
  int64_t slots() const { return plan_.settings.slots; }
  /// One line: device, strategy, slots, memory.
  std::string text() const;

 private:
  void choose(const TextsToGenerate& work);
  void load_weights();

  const World& world_;
  WeightSource source_;
  Config config_;
  std::unique_ptr<Model> model_;
  ModelInputs inputs_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ImageProcessor image_processor_;
  GenerateSettings settings_;
  bool puts_prefix_ = false;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Comm> self_;
  std::unique_ptr<CommGroups> groups_;     // where weights are cut over the ranks
  GenerationPlan plan_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<DecodeEngine> engine_;
  int64_t tokens_ = 0;
};

}  // namespace blipft
