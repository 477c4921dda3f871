#include "evaluate/likelihood_metrics.h"

#include <cmath>
#include <numbers>
#include <numeric>

#include "text/python_text.h"
#include "text/unicode.h"

namespace blipft {
namespace {

// Same as numpy.argmax: the first of equal maxima; a NaN is larger than everything.
int64_t likeliest(const std::vector<double>& values) {
  size_t best = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) return static_cast<int64_t>(i);
    if (values[i] > values[best]) best = i;
  }
  return static_cast<int64_t>(best);
}

template <class Length>
bool right_by(const ScoredChoices& question, const Length& length) {
  auto values = question.log_likelihoods;
  for (size_t i = 0; i < values.size(); ++i) values[i] /= static_cast<double>(length(question.choices[i]));
  return likeliest(values) == question.gold;
}

}  // namespace

bool choice_is_right(const ScoredChoices& question) { return likeliest(question.log_likelihoods) == question.gold; }

bool choice_is_right_by_characters(const ScoredChoices& question) {
  return right_by(question, [](const std::string& choice) { return count_characters(choice); });
}

bool choice_is_right_by_bytes(const ScoredChoices& question) {
  return right_by(question, [](const std::string& choice) { return choice.size(); });
}

double standard_error_of_mean(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / (n - 1)) / std::sqrt(n);
}

LossSums::LossSums(const std::vector<ScoredLoss>& texts) {
  for (const auto& text : texts) {
    log_likelihood += text.log_likelihood;
    tokens += text.tokens;
    words += text.words;
    bytes += text.bytes;
  }
}

double LossSums::loss() const { return -log_likelihood / static_cast<double>(tokens); }
double LossSums::perplexity() const { return std::exp(loss()); }
double LossSums::word_perplexity() const { return std::exp(-log_likelihood / static_cast<double>(words)); }
double LossSums::byte_perplexity() const { return std::exp(-log_likelihood / static_cast<double>(bytes)); }
double LossSums::bits_per_byte() const { return -log_likelihood / static_cast<double>(bytes) / std::numbers::ln2; }

int64_t count_words(const std::string& text) {
  int64_t runs = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const bool space = is_python_space(unicode::next_code_point(text, at));
    runs += space && !inside;
    inside = space;
  }
  return runs + 1;
}

}  // namespace blipft
