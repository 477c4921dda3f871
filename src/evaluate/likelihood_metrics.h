// Scores made of log-likelihoods, as lm-eval 0.4 computes them: multiple choice and perplexities.
#pragma once

#include <cstdint>
#include <vector>

#include "blipft/evaluate.h"

namespace blipft {

/// Whether the right choice is the likeliest: by its sum (acc), by its sum over its characters (acc_norm) or over its bytes
/// (acc_bytes). Of equally likely ones the first.
bool choice_is_right(const ScoredChoices& question);
bool choice_is_right_by_characters(const ScoredChoices& question);
bool choice_is_right_by_bytes(const ScoredChoices& question);

/// Sample deviation (n - 1) over the square root of n, of at least two values.
double standard_error_of_mean(const std::vector<double>& values);

/// Sums over a set of texts.
struct LossSums {
  explicit LossSums(const std::vector<ScoredLoss>& texts);
  double log_likelihood = 0;
  int64_t tokens = 0, words = 0, bytes = 0;

  double loss() const;             ///< of a token, mean over all tokens of the set
  double perplexity() const;       ///< exp(loss)
  double word_perplexity() const;  ///< exp(-log-likelihood / words)
  double byte_perplexity() const;
  double bits_per_byte() const;
};

}  // namespace blipft
