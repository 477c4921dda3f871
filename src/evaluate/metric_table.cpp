// The names that run files and scores.json use.
#include "blipft/error.h"
#include "blipft/evaluate.h"

namespace blipft {

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

const Metric& find_metric(const std::string& name, const std::string& place) {
  std::string known;
  for (const auto& metric : metrics()) {
    if (metric.name == name) return metric;
    known += (known.empty() ? "" : ", ") + metric.name;
  }
  throw UserError(concat(place, place.empty() ? "" : ": ", "no metric is called \"", brief(name), "\"; choose of ", known));
}

}  // namespace blipft
