// PromptSet: the prompts of a data set, with their pictures and reference answers.
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

/// Decodes and resizes a picture for the model: u8 [P, P, 3] with P = `size`.
std::vector<uint8_t> pixels_of(const std::vector<uint8_t>& encoded, const std::string& name, int64_t size,
                               const DecodeSettings& settings);

class PromptSet {
 public:
  /// The source of the samples. `key`: the key of the run file that has `path`; `text`: a description for messages.
  struct Source {
    std::shared_ptr<const Dataset> dataset;
    std::string path, key, text;
  };
  /// Tokenizes the prompts of the first `samples` samples (0: all). If a prompt is empty or too long for the model,
  /// throws UserError, or with data.on_bad_sample=skip leaves the sample out.
  PromptSet(const EngineSettings& config, Source source, const Tokenizer& tokenizer, const ModelInputs& inputs, int64_t samples,
            const InstructionReader& instructions);

  const std::vector<PromptedSample>& prompts() const { return prompts_; }
  const std::string& path() const { return source_.path; }
  const std::string& key() const { return source_.key; }
  const std::string& from() const { return source_.text; }
  const Dataset& dataset() const { return *source_.dataset; }
  const ModelInputs& inputs() const { return inputs_; }
  int64_t longest() const { return longest_; }  ///< ids of the longest prompt
  int64_t longest_instruction() const { return longest_instruction_; }  ///< ids of the longest instruction
  /// One message for each sample that was left out.
  const std::vector<std::string>& left_out() const { return left_out_; }
  /// Records that a sample is left out, with the message `why`. Throws UserError unless data.on_bad_sample is skip.
  void leave_out(const std::string& why);
  /// leave_out() for a sample that every rank reads and leaves out. left_out_of_all() counts each message once.
  void leave_out_everywhere(const std::string& why);
  /// Returns the number of samples that any rank left out. All ranks must call it.
  int64_t left_out_of_all(const World& world) const;
  /// Returns the decoded picture of sample `index` of the data set.
  Image picture(int64_t index) const;
  /// Returns the picture of sample `index` as the model reads it; empty for a text model. Returns nullopt if it cannot
  /// be read and data.on_bad_sample is skip. If the model reads pictures in texts, returns the patches of those of `text`,
  /// the sample's text, which then refers to them.
  std::optional<std::vector<uint8_t>> pixels_of_sample(int64_t index, TokenizedText& text) const;
  /// Returns the patches of all pictures of a prompt whose text has pictures; PictureReader::set_patches() knows them.
  std::vector<uint8_t> patches(const PromptedSample& prompt) const;
  /// Null if the model reads no pictures in texts.
  const PictureReader* reader() const { return reader_.get(); }
  /// Returns the most that the pictures of one prompt have.
  const PictureShape& pictures() const { return max_pictures_; }
  /// Returns true if each prompt is about a picture: a caption or a question.
  bool about_pictures() const;
  /// Resizes a picture to the size that the model reads.
  std::vector<uint8_t> pixels(const Image& picture) const;

 private:
  void check_prompts();
  Source source_;
  ModelInputs inputs_;
  bool skips_ = false;
  DecodeSettings pictures_;
  std::shared_ptr<const PictureReader> reader_;
  PictureShape max_pictures_;
  std::vector<PromptedSample> prompts_;
  std::vector<std::string> left_out_;
  std::set<std::string> left_out_everywhere_;
  int64_t longest_ = 1, longest_instruction_ = 0;
};

/// The samples that --generate and --evaluate answer.
struct PromptSource {
  std::string path, key;                   ///< key: the key of the run file that has `path`
  bool held_out = false;                   ///< true: only the part that data.val_split_fraction holds out
  /// "data.json (the 20 samples held out by data.val_split_fraction)" for `samples` = 20 held-out samples, else `path`.
  std::string text(int64_t samples) const;
  /// Throws UserError if `path` does not exist.
  void check(const EngineSettings& config) const;
};
/// Returns the samples of generate.path, else data.val_path, else data.path. For data.path, `scored` samples are only
/// those that data.val_split_fraction holds out from training, if any.
PromptSource prompt_source(const EngineSettings& config, bool scored);
/// Opens the prompts of prompt_source(). Throws UserError if there are none.
PromptSet open_prompts(const EngineSettings& config, const Tokenizer& tokenizer, const ModelInputs& inputs,
                       const InstructionReader& instructions, bool scored);

/// The prompts that a run generates from at its validations, and the settings of generation.
struct ValidationPrompts {
  GenerateSettings settings;
  PromptSet set;
  EvaluationWork work(const EngineSettings& config) const {
    return {.settings = settings, .inputs = set.inputs(), .longest_prompt = set.longest(),
            .prompts = static_cast<int64_t>(set.prompts().size()), .batch_size = config.generate.batch_size,
            .longest_instruction = set.longest_instruction(), .pictures = set.pictures()};
  }
};

/// Opens the first `samples` validation samples of `data`; generate.prompt, if set, replaces
/// data.prompt_template. Returns null if validations generate nothing. Throws UserError.
std::unique_ptr<ValidationPrompts> open_validation_prompts(const EngineSettings& config, int64_t samples, const ModelInputs& inputs,
                                                           const RunData& data);

}  // namespace blipft
