#include "evaluate/caption_metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <unordered_map>

#include "text/python_text.h"

namespace blipft {
namespace {

constexpr int64_t max_words = 4;  // maximum words of an n-gram
constexpr double sigma = 6, beta = 1.2;

// An n-gram of up to four words, as word numbers from 1; unused entries are 0.
using NGram = std::array<int32_t, max_words>;

int64_t words_of(const NGram& gram) { return max_words - std::count(gram.begin(), gram.end(), 0); }

using Counts = std::map<NGram, int64_t>;  // ordered, so that sums do not depend on the standard library

class Vocabulary {
 public:
  std::vector<int32_t> numbers(const std::string& text) {
    std::vector<int32_t> out;
    for (std::string_view word : split_words(text))
      out.push_back(numbers_.try_emplace(std::string(word), static_cast<int32_t>(numbers_.size()) + 1).first->second);
    return out;
  }

 private:
  std::unordered_map<std::string, int32_t> numbers_;
};

struct Counted {
  int64_t words = 0;
  Counts counts;
};

Counted count(Vocabulary& vocabulary, const std::string& text) {
  const auto words = vocabulary.numbers(text);
  Counted out;
  out.words = static_cast<int64_t>(words.size());
  for (size_t begin = 0; begin < words.size(); ++begin) {
    NGram gram{};
    for (size_t n = 0; n < max_words && begin + n < words.size(); ++n) {
      gram[n] = words[begin + n];
      ++out.counts[gram];
    }
  }
  return out;
}

struct CountedCaption {
  Counted candidate;
  std::vector<Counted> references;
};

std::vector<CountedCaption> count(const std::vector<TokenizedCaption>& captions) {
  Vocabulary vocabulary;
  std::vector<CountedCaption> out;
  for (const auto& caption : captions) {
    CountedCaption counted{count(vocabulary, caption.candidate), {}};
    for (const auto& reference : caption.references) counted.references.push_back(count(vocabulary, reference));
    out.push_back(std::move(counted));
  }
  return out;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The n-grams of a text with their TF-IDF weights, where document frequencies count the captions with a reference that
// has the n-gram.
struct WeighedText {
  std::map<NGram, double> weights;
  std::array<double, max_words> norms{};
  int64_t length = 0;  // as in pycocoevalcap: the number of bigrams
};

class CiderWeights {
 public:
  explicit CiderWeights(const std::vector<CountedCaption>& captions)
      : log_captions_(std::log(static_cast<double>(captions.size()))) {
    for (const auto& caption : captions) {
      Counts seen;
      for (const auto& reference : caption.references)
        for (const auto& [gram, times] : reference.counts) seen[gram] = 1;
      for (const auto& [gram, one] : seen) ++captions_with_[gram];
    }
  }

  WeighedText weighed(const Counted& text) const {
    WeighedText out;
    for (const auto& [gram, times] : text.counts) {
      const auto found = captions_with_.find(gram);
      const double frequency = found == captions_with_.end() ? 1 : static_cast<double>(found->second);
      const double weight = static_cast<double>(times) * (log_captions_ - std::log(frequency));
      const int64_t n = words_of(gram);
      out.weights[gram] = weight;
      out.norms[n - 1] += weight * weight;
      if (n == 2) out.length += times;
    }
    for (double& norm : out.norms) norm = std::sqrt(norm);
    return out;
  }

 private:
  double log_captions_;
  Counts captions_with_;
};

double similarity(const WeighedText& candidate, const WeighedText& reference) {
  std::array<double, max_words> products{};
  for (const auto& [gram, weight] : candidate.weights) {
    const auto found = reference.weights.find(gram);
    if (found != reference.weights.end())
      products[words_of(gram) - 1] += std::min(weight, found->second) * found->second;
  }
  const double apart = static_cast<double>(candidate.length - reference.length);
  const double penalty = std::exp(-(apart * apart) / (2 * sigma * sigma));
  double sum = 0;
  for (int64_t n = 0; n < max_words; ++n) {
    const double norms = candidate.norms[n] * reference.norms[n];
    sum += (norms != 0 ? products[n] / norms : products[n]) * penalty;
  }
  return sum / max_words;
}

// Sums over captions, from which BLEU is computed.
struct BleuSums {
  int64_t words = 0, reference_words = 0;
  std::array<int64_t, max_words> guessed{}, right{};

  std::array<double, max_words> scores() const {
    // The constants of pycocoevalcap that avoid divisions by zero.
    constexpr double small = 1e-9, tiny = 1e-15;
    std::array<double, max_words> out{};
    double product = 1;
    for (int64_t k = 0; k < max_words; ++k) {
      product *= (static_cast<double>(right[k]) + tiny) / (static_cast<double>(guessed[k]) + small);
      out[k] = std::pow(product, 1.0 / static_cast<double>(k + 1));
    }
    const double ratio = (static_cast<double>(words) + tiny) / (static_cast<double>(reference_words) + small);
    if (ratio < 1)
      for (double& score : out) score *= std::exp(1 - 1 / ratio);
    return out;
  }
};

BleuSums bleu_sums(const CountedCaption& caption) {
  BleuSums out;
  out.words = caption.candidate.words;
  Counts maximum;
  std::pair<int64_t, int64_t> closest{INT64_MAX, 0};  // {difference of lengths, length}
  for (const auto& reference : caption.references) {
    closest = std::min(closest, {std::abs(reference.words - out.words), reference.words});
    for (const auto& [gram, times] : reference.counts) maximum[gram] = std::max(maximum[gram], times);
  }
  out.reference_words = closest.second;
  for (int64_t k = 0; k < max_words; ++k) out.guessed[k] = std::max<int64_t>(0, out.words - k);
  for (const auto& [gram, times] : caption.candidate.counts)
    if (const auto found = maximum.find(gram); found != maximum.end())
      out.right[words_of(gram) - 1] += std::min(found->second, times);
  return out;
}

int64_t longest_common_subsequence(const std::vector<std::string_view>& a, const std::vector<std::string_view>& b) {
  std::vector<int64_t> row(b.size() + 1), before;
  for (const auto& word : a) {
    before = row;
    for (size_t j = 1; j <= b.size(); ++j)
      row[j] = word == b[j - 1] ? before[j - 1] + 1 : std::max(before[j], row[j - 1]);
  }
  return row.back();
}

}  // namespace

CaptionScore cider_d(const std::vector<TokenizedCaption>& captions) {
  const auto counted = count(captions);
  const CiderWeights weights(counted);
  CaptionScore out;
  for (const auto& caption : counted) {
    const auto candidate = weights.weighed(caption.candidate);
    double sum = 0;
    for (const auto& reference : caption.references) sum += similarity(candidate, weights.weighed(reference));
    out.by_caption.push_back(sum / static_cast<double>(caption.references.size()) * 10);
  }
  out.value = mean(out.by_caption);
  return out;
}

std::array<CaptionScore, 4> bleu(const std::vector<TokenizedCaption>& captions) {
  std::array<CaptionScore, 4> out;
  BleuSums all;
  for (const auto& caption : count(captions)) {
    const BleuSums sums = bleu_sums(caption);
    all.words += sums.words;
    all.reference_words += sums.reference_words;
    const auto scores = sums.scores();
    for (int64_t k = 0; k < max_words; ++k) {
      all.guessed[k] += sums.guessed[k];
      all.right[k] += sums.right[k];
      out[k].by_caption.push_back(scores[k]);
    }
  }
  const auto scores = all.scores();
  for (int64_t k = 0; k < max_words; ++k) out[k].value = scores[k];
  return out;
}

CaptionScore rouge_l(const std::vector<TokenizedCaption>& captions) {
  CaptionScore out;
  for (const auto& caption : captions) {
    const auto candidate = split_blanks(caption.candidate);
    double precision = 0, recall = 0;
    for (const auto& text : caption.references) {
      const auto reference = split_blanks(text);
      const auto common = static_cast<double>(longest_common_subsequence(candidate, reference));
      precision = std::max(precision, common / static_cast<double>(candidate.size()));
      recall = std::max(recall, common / static_cast<double>(reference.size()));
    }
    const bool nothing = precision == 0 || recall == 0;
    const double square = beta * beta;
    out.by_caption.push_back(nothing ? 0 : (1 + square) * precision * recall / (recall + square * precision));
  }
  out.value = mean(out.by_caption);
  return out;
}

}  // namespace blipft
