// The questions of a multiple choice by log-likelihood, and the texts whose likelihoods answer them.
#pragma once

#include <string>
#include <vector>

#include "engine/decode/decode_shape.h"
#include "generate/generation_model.h"

namespace blipft {

/// Returns true if evaluate.metrics use choices. Throws UserError naming the key if only some of them do.
bool asks_for_choices(const Config& config);

struct Question {
  std::string place, query;                ///< place: file and record
  std::vector<std::string> choices;
  int64_t gold = 0;                        ///< index of the right one
  std::string error = {};                  ///< why the record is no question; empty: it is one
};

class ChoiceSet {
 public:
  /// Reads the samples that prompt_source() says as questions, each with a query, choices and the index of the right one.
  /// Throws UserError. With data.on_bad_sample=skip, records that are no questions are left out.
  ChoiceSet(const Config& config, const GenerationModel& model);

  const std::vector<Question>& questions() const { return questions_; }
  /// Returns the whole texts of a rank's questions, one per choice. A rank has every `ranks`-th question.
  std::vector<TokenizedText> texts_of_rank(int64_t rank, int64_t ranks) const;
  /// Returns an upper bound of the work of each of `ranks` ranks.
  TextsToGenerate work(int64_t ranks) const;
  /// Why records were left out, one text each.
  const std::vector<std::string>& left_out() const { return left_out_; }
  /// "questions.json (the 20 samples held out by data.val_split_fraction)"
  const std::string& from() const { return from_; }

 private:
  void add(Question question, const GenerationModel& model);

  std::string from_;
  std::vector<Question> questions_;
  std::vector<std::string> left_out_;
  std::vector<std::vector<TokenizedText>> texts_;  // of each question
  int64_t longest_ = 1, longest_source_ = 1;
};

}  // namespace blipft
