// PromptSet: the prompts of a data set that a model can go on from, their pictures and what would be right.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "blipft/comm.h"
#include "blipft/datasets.h"
#include "blipft/pictures.h"
#include "blipft/prompts.h"
#include "engine/decode/decode_shape.h"
#include "engine/run_data.h"

namespace blipft {

/// A picture as the model reads it: u8 [P, P, 3].
std::vector<uint8_t> pixels_of(const std::vector<uint8_t>& encoded, const std::string& name, int64_t size,
                               const DecodeSettings& settings);

class PromptSet {
 public:
  /// Where the samples are from, and the key of the run file that says so. `text`: which of those at `path`, for people.
  struct Source {
    std::shared_ptr<const Dataset> dataset;
    std::string path, key, text;
  };
  /// Tokenizes the prompts of the first `samples` samples (0: all). Throws UserError where a prompt is empty or too long for
  /// the model, and with data.on_bad_sample skip leaves it out.
  PromptSet(const Config& config, Source source, const Tokenizer& tokenizer, const ModelInputs& inputs, int64_t samples,
            const InstructionReader& instructions);

  const std::vector<PromptedSample>& prompts() const { return prompts_; }
  const std::string& path() const { return source_.path; }
  const std::string& key() const { return source_.key; }
  const std::string& from() const { return source_.text; }
  const Dataset& dataset() const { return *source_.dataset; }
  const ModelInputs& inputs() const { return inputs_; }
  int64_t longest() const { return longest_; }  ///< ids of a prompt
  int64_t longest_instruction() const { return longest_instruction_; }  ///< ids of an instruction beside one
  /// Samples that were left out, and why.
  const std::vector<std::string>& left_out() const { return left_out_; }
  /// Throws UserError, or leaves a sample out where data.on_bad_sample says so.
  void leave_out(const std::string& why);
  /// The same for a sample that all ranks leave out because each of them reads it; the same reason counts once.
  void leave_out_everywhere(const std::string& why);
  /// The number of samples that any rank left out. Called by all ranks.
  int64_t left_out_of_all(const World& world) const;
  /// The picture of sample `index` of the data set.
  Image picture(int64_t index) const;
  /// The picture of sample `index` as the model reads it, empty for a model of texts. Nothing if it cannot be read and
  /// data.on_bad_sample is skip.
  std::optional<std::vector<uint8_t>> pixels_of_sample(int64_t index) const;
  /// A picture as the model reads it.
  std::vector<uint8_t> pixels(const Image& picture) const;

 private:
  void check_prompts();
  Source source_;
  ModelInputs inputs_;
  bool skips_ = false;
  DecodeSettings pictures_;
  std::vector<PromptedSample> prompts_;
  std::vector<std::string> left_out_;
  std::set<std::string> left_out_everywhere_;
  int64_t longest_ = 1, longest_instruction_ = 0;
};

/// The samples that --generate and --evaluate answer.
struct PromptSource {
  std::string path, key;                   ///< key: of the run file, which names them
  bool held_out = false;                   ///< of these that part alone that data.val_split_fraction keeps for validations
  /// "data.json (the 20 samples held out by data.val_split_fraction)", where it is so many samples.
  std::string text(int64_t samples) const;
  /// Throws UserError where nothing is at `path`.
  void check(const Config& config) const;
};
/// Those of generate.path, else of the validation, else of the training; where they are to be `scored` of these the part that
/// was not learnt, if there is any.
PromptSource prompt_source(const Config& config, bool scored);
/// Their prompts. Throws UserError where there are none.
PromptSet open_prompts(const Config& config, const Tokenizer& tokenizer, const ModelInputs& inputs,
                       const InstructionReader& instructions, bool scored);

/// What a run generates at its validations, and how.
struct ValidationPrompts {
  GenerateSettings settings;
  PromptSet set;
  EvaluationWork work(const Config& config) const {
    return {.settings = settings, .inputs = set.inputs(), .longest_prompt = set.longest(),
            .prompts = static_cast<int64_t>(set.prompts().size()), .batch_size = config.generate.batch_size,
            .longest_instruction = set.longest_instruction()};
  }
};

/// The first config.evaluate.samples validation samples of `data`; with generate.prompt that text stands before each picture's
/// answer. Null where nothing is generated. Throws UserError.
std::unique_ptr<ValidationPrompts> open_validation_prompts(const Config& config, const ModelInputs& inputs, const RunData& data);

}  // namespace blipft
