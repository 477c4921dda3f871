// ChoiceSet: multiple-choice questions, and the texts whose log-likelihoods answer them.
#pragma once

#include <string>
#include <vector>

#include "engine/decode/decode_shape.h"
#include "generate/generation_model.h"

namespace blipft {

/// Returns true if evaluate.metrics use choices. Throws UserError naming the key if only some of them do.
bool uses_choices(const Config& config);

struct Question {
  std::string location, query;                ///< location: file and record, for messages
  std::vector<std::string> choices;
  int64_t gold = 0;                        ///< index of the correct choice
  std::string error = {};                  ///< the fault of an invalid record; empty for a question
};

class ChoiceSet {
 public:
  /// Reads the samples of prompt_source() as questions, each with a query, choices and the index of the right one.
  /// Throws UserError. With data.on_bad_sample=skip, records that are no questions are left out.
  ChoiceSet(const Config& config, const GenerationModel& model);

  const std::vector<Question>& questions() const { return questions_; }
  /// Returns the whole texts of a rank's questions, one per choice. A rank has every `ranks`-th question.
  std::vector<TokenizedText> texts_of_rank(int64_t rank, int64_t ranks) const;
  /// Returns an upper bound of the work of each of `ranks` ranks.
  TextsToGenerate work(int64_t ranks) const;
  /// Returns the fault of each record that was left out.
  const std::vector<std::string>& left_out() const { return left_out_; }
  /// Returns "questions.json (the 20 samples held out by data.val_split_fraction)".
  const std::string& from() const { return from_; }

 private:
  void add(Question question, const GenerationModel& model);

  std::string from_;
  std::vector<Question> questions_;
  std::vector<std::string> left_out_;
  std::vector<std::vector<TokenizedText>> texts_;  // the texts of each question
  int64_t longest_ = 1, longest_source_ = 1;
};

}  // namespace blipft
