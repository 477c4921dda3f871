// The table of metrics, and Evaluation, which collects samples and scores the whole set.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <numeric>

#include "blipft/error.h"
#include "blipft/evaluate.h"
#include "evaluate/answer_metrics.h"
#include "evaluate/caption_metrics.h"
#include "evaluate/likelihood_metrics.h"
#include "evaluate/ptb_tokenizer.h"

namespace blipft {
namespace {

template <class Sample>
void put_in_order(std::vector<Sample>& samples) {
  std::sort(samples.begin(), samples.end(), [](auto& a, auto& b) { return a.index < b.index; });
  for (size_t i = 1; i < samples.size(); ++i)
    BLIPFT_CHECK(samples[i - 1].index != samples[i].index, "two samples have index ", samples[i].index);
}

Score mean_score(const std::string& metric, std::vector<double> by_sample) {
  Score score{metric, 0, std::nullopt, std::move(by_sample)};
  score.value = std::accumulate(score.by_sample.begin(), score.by_sample.end(), 0.0) /
                static_cast<double>(score.by_sample.size());
  if (score.by_sample.size() > 1) score.standard_error = standard_error_of_mean(score.by_sample);
  return score;
}

std::string input_name(MetricInput input) {
  switch (input) {
    case MetricInput::texts: return "generated texts";
    case MetricInput::choices: return "choices with their log-likelihoods";
    default: return "log-likelihoods of whole texts";
  }
}

void check_computed(bool known, const std::string& metric) {
  BLIPFT_CHECK(known, "the table of metrics names ", metric, ", which nothing computes");
}

// Computes metrics of generated texts. Intermediate results that several metrics share are computed once.
class TextScorer {
 public:
  explicit TextScorer(const std::vector<ScoredText>& texts) : texts_(texts) {}

  Score score(const std::string& metric) {
    if (metric == "cider") return caption_score(metric, cider_d(tokenized()));
    if (metric == "rouge_l") return caption_score(metric, rouge_l(tokenized()));
    if (metric.starts_with("bleu")) return caption_score(metric, bleus()[static_cast<size_t>(metric.back() - '1')]);
    if (metric.starts_with("vqa_accuracy")) {
      check_annotators(metric);
      return by_text(metric, metric == "vqa_accuracy" ? vqa_accuracy : vqa_accuracy_lavis);
    }
    if (metric == "squad_exact") return by_text(metric, squad_exact);
    if (metric == "squad_f1") return by_text(metric, squad_f1);
    check_computed(metric == "exact_match", metric);
    return by_text(metric, exact_match);
  }

 private:
  static Score caption_score(const std::string& metric, CaptionScore scored) {
    return {metric, scored.value, std::nullopt, std::move(scored.by_caption)};
  }
  Score by_text(const std::string& metric,
                const std::function<double(std::string_view, const std::vector<std::string>&)>& score) const {
    std::vector<double> out;
    for (const auto& text : texts_) out.push_back(score(text.candidate, text.references));
    return mean_score(metric, std::move(out));
  }
  void check_annotators(const std::string& metric) const {
    for (const auto& text : texts_)
      BLIPFT_USER_CHECK(
          text.references.size() > 1, metric, ": sample ", brief(text.id),
          " has 1 reference; expected the answers "
          "of several annotators (VQA has ten): with one the accuracy is always 0; use squad_exact or exact_match");
  }
  const std::vector<TokenizedCaption>& tokenized() {
    if (!tokenized_.empty()) return tokenized_;
    PtbTokenizer tokenizer;
    for (const auto& text : texts_) {
      TokenizedCaption caption{tokenizer.words(text.candidate), {}};
      for (const auto& reference : text.references) caption.references.push_back(tokenizer.words(reference));
      tokenized_.push_back(std::move(caption));
    }
    return tokenized_;
  }
  const std::array<CaptionScore, 4>& bleus() {
    if (bleus_[0].by_caption.empty()) bleus_ = bleu(tokenized());
    return bleus_;
  }

  const std::vector<ScoredText>& texts_;
  std::vector<TokenizedCaption> tokenized_;
  std::array<CaptionScore, 4> bleus_;
};

Score choice_score(const std::string& metric, const std::vector<ScoredChoices>& questions) {
  const auto right = metric == "acc"         ? choice_is_right
                     : metric == "acc_norm"  ? choice_is_right_by_characters
                     : metric == "acc_bytes" ? choice_is_right_by_bytes
                                             : nullptr;
  check_computed(right != nullptr, metric);
  std::vector<double> out;
  for (const auto& question : questions) out.push_back(right(question) ? 1 : 0);
  return mean_score(metric, std::move(out));
}

Score loss_score(const std::string& metric, const std::vector<ScoredLoss>& texts) {
  const LossSums sums(texts);
  const auto some = [&](int64_t count, const char* what) {
    BLIPFT_USER_CHECK(count > 0, metric, ": the texts have no ", what, "; expected at least one in the set");
  };
  Score score{metric, 0, std::nullopt, {}};
  if (metric == "loss" || metric == "perplexity") {
    some(sums.tokens, "predicted tokens");
    score.value = metric == "loss" ? sums.loss() : sums.perplexity();
  } else if (metric == "word_perplexity") {
    some(sums.words, "words");
    score.value = sums.word_perplexity();
  } else {
    check_computed(metric == "byte_perplexity" || metric == "bits_per_byte", metric);
    some(sums.bytes, "bytes");
    score.value = metric == "byte_perplexity" ? sums.byte_perplexity() : sums.bits_per_byte();
  }
  return score;
}

}  // namespace

const std::vector<Metric>& metrics() {
  using enum MetricInput;
  static const std::vector<Metric> table{
      {"cider", texts, true, "CIDEr-D, pycocoevalcap"},
      {"bleu1", texts, true, "BLEU-1 of the corpus, pycocoevalcap"},
      {"bleu2", texts, true, "BLEU-2 of the corpus, pycocoevalcap"},
      {"bleu3", texts, true, "BLEU-3 of the corpus, pycocoevalcap"},
      {"bleu4", texts, true, "BLEU-4 of the corpus, pycocoevalcap"},
      {"rouge_l", texts, true, "ROUGE-L, pycocoevalcap"},
      {"vqa_accuracy", texts, true, "agreement with ten annotators, official VQA script"},
      {"vqa_accuracy_lavis", texts, true, "the same by LAVIS, which normalises the model's answer alone"},
      {"exact_match", texts, true, "the same text as a reference, lm-eval"},
      {"squad_exact", texts, true, "the same but for case, punctuation and articles, SQuAD script"},
      {"squad_f1", texts, true, "words in common, SQuAD script"},
      {"acc", choices, true, "the likeliest choice is right, lm-eval"},
      {"acc_norm", choices, true, "the likeliest choice per character is right, lm-eval"},
      {"acc_bytes", choices, true, "the likeliest choice per byte is right, lm-eval"},
      {"loss", losses, false, "mean over all predicted tokens, natural logarithm"},
      {"perplexity", losses, false, "exp(loss), of a token"},
      {"word_perplexity", losses, false, "of a word of the raw text, lm-eval"},
      {"byte_perplexity", losses, false, "of a byte of the raw text, lm-eval"},
      {"bits_per_byte", losses, false, "of the raw text, lm-eval"}};
  return table;
}

const Metric& find_metric(const std::string& name, const std::string& location) {
  std::string known;
  for (const auto& metric : metrics()) {
    if (metric.name == name) return metric;
    known += (known.empty() ? "" : ", ") + metric.name;
  }
  throw UserError(
      concat(location, location.empty() ? "" : ": ", "no metric is called \"", brief(name), "\"; choose of ", known));
}

struct Evaluation::Samples {
  std::vector<ScoredText> texts;
  std::vector<ScoredChoices> choices;
  std::vector<ScoredLoss> losses;
};

Evaluation::Evaluation() : samples_(std::make_unique<Samples>()) {}
Evaluation::~Evaluation() = default;
Evaluation::Evaluation(Evaluation&&) noexcept = default;
Evaluation& Evaluation::operator=(Evaluation&&) noexcept = default;

void Evaluation::add(ScoredText sample) {
  BLIPFT_USER_CHECK(!sample.references.empty(), "sample ", brief(sample.id),
                    " has no reference; expected at least one to score with");
  samples_->texts.push_back(std::move(sample));
}

void Evaluation::add(ScoredChoices sample) {
  const auto count = static_cast<int64_t>(sample.choices.size());
  BLIPFT_CHECK(sample.log_likelihoods.size() == sample.choices.size(), "sample ", sample.id, ": ", count,
               " choices and ", sample.log_likelihoods.size(), " log-likelihoods");
  BLIPFT_USER_CHECK(sample.gold >= 0 && sample.gold < count, "sample ", brief(sample.id),
                    ": the right choice is number ", sample.gold, ", counted from 0; expected one of its ",
                    counted(count, "choice"));
  for (const auto& choice : sample.choices)
    BLIPFT_USER_CHECK(!choice.empty(), "sample ", brief(sample.id), " has an empty choice; expected a text");
  samples_->choices.push_back(std::move(sample));
}

void Evaluation::add(ScoredLoss sample) { samples_->losses.push_back(sample); }

int64_t Evaluation::size() const {
  return static_cast<int64_t>(samples_->texts.size() + samples_->choices.size() + samples_->losses.size());
}

const std::vector<ScoredText>& Evaluation::texts() {
  put_in_order(samples_->texts);
  return samples_->texts;
}

std::vector<Score> Evaluation::scores(const std::vector<std::string>& names) {
  put_in_order(samples_->texts);
  put_in_order(samples_->choices);
  put_in_order(samples_->losses);
  TextScorer texts(samples_->texts);
  const std::map<MetricInput, int64_t> sizes{{MetricInput::texts, samples_->texts.size()},
                                             {MetricInput::choices, samples_->choices.size()},
                                             {MetricInput::losses, samples_->losses.size()}};
  std::vector<Score> out;
  for (const auto& name : names) {
    const Metric& metric = find_metric(name, "");
    BLIPFT_USER_CHECK(sizes.at(metric.input) > 0, name, " is computed from ", input_name(metric.input),
                      ", and this set has none; choose a metric for what it has, or another set");
    switch (metric.input) {
      case MetricInput::texts: out.push_back(texts.score(name)); break;
      case MetricInput::choices: out.push_back(choice_score(name, samples_->choices)); break;
      case MetricInput::losses: out.push_back(loss_score(name, samples_->losses)); break;
    }
  }
  return out;
}

}  // namespace blipft
