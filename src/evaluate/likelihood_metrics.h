// Metrics from log-likelihoods, as lm-eval 0.4 computes them: multiple choice and perplexities.
#pragma once

#include <cstdint>
#include <vector>

#include "blipft/evaluate.h"

namespace blipft {

/// These return true if the right choice has the highest log-likelihood: the sum over its tokens (acc), this sum
/// divided by its characters (acc_norm) or by its bytes (acc_bytes). The first of equally likely choices wins.
bool choice_is_right(const ScoredChoices& question);
bool choice_is_right_by_characters(const ScoredChoices& question);
bool choice_is_right_by_bytes(const ScoredChoices& question);

/// Sample standard deviation (n - 1) divided by the square root of n, for at least two values.
double standard_error_of_mean(const std::vector<double>& values);

/// Sums over a set of texts, and the metrics computed from them.
struct LossSums {
  explicit LossSums(const std::vector<ScoredLoss>& texts);
  double log_likelihood = 0;
  int64_t tokens = 0, words = 0, bytes = 0;

  double loss() const;             ///< mean per token over all tokens of the set
  double perplexity() const;       ///< exp(loss)
  double word_perplexity() const;  ///< exp(-log-likelihood / words)
  double byte_perplexity() const;
  double bits_per_byte() const;
};

}  // namespace blipft
