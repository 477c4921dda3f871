// Metrics for the outputs of a model: captions and answers are compared with references, multiple-choice answers and
// texts are scored by their log-likelihood.
//
// Every value equals the value of a published tool, including its oddities. docs/evaluation.md lists these tools and
// the known differences.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace blipft {

/// The input of a metric.
enum class MetricInput {
  texts,    ///< ScoredText: a generated text and its references
  choices,  ///< ScoredChoices: the log-likelihoods of several answers
  losses,   ///< ScoredLoss: the log-likelihood of a whole text
};

struct Metric {
  std::string name;  ///< the name in run files and scores.json
  MetricInput input;
  bool higher_is_better;
  std::string about;  ///< description of about half a line, with the source
};

/// Returns all available metrics.
const std::vector<Metric>& metrics();
/// Returns the metric with this name. Throws UserError that lists all names if it is unknown; the message begins with
/// `location` (a file and key).
const Metric& find_metric(const std::string& name, const std::string& location);

/// A generated text. Samples are sorted by `index`, in whatever order they are added. Adding two samples with the same
/// index is an error.
struct ScoredText {
  int64_t index = 0;
  std::string id;      ///< id in result files: "391895"
  std::string prompt;  ///< displayed, not scored; may be empty
  std::string candidate;
  std::vector<std::string> references;  ///< at least one; at least two for vqa_accuracy
  std::string picture;                  ///< picture file; displayed, not scored; may be empty
};

/// A multiple-choice question.
struct ScoredChoices {
  int64_t index = 0;
  std::string id;
  std::vector<std::string> choices;     ///< without the blank between question and answer
  std::vector<double> log_likelihoods;  ///< sums over the tokens of each choice, natural logarithm
  int64_t gold = 0;                     ///< index of the right choice
};

/// A text whose tokens were predicted.
struct ScoredLoss {
  int64_t index = 0;
  double log_likelihood = 0;  ///< sum over the predicted tokens, natural logarithm
  int64_t tokens = 0;         ///< number of predicted tokens
  int64_t words = 0;          ///< count_words() of the raw text; 0 if word_perplexity is not requested
  int64_t bytes = 0;          ///< size of the raw text; 0 if byte_perplexity and bits_per_byte are not requested
};

struct Score {
  std::string metric;
  double value = 0;
  std::optional<double> standard_error;  ///< only for metrics that are means over samples, with more than one sample
  std::vector<double> by_sample;         ///< in the order of indices; empty if the metric has no score per sample
};

/// Collects the outputs for a whole data set and computes their scores. All samples must have the same type. The order
/// of adding samples does not change any bit of the result.
class Evaluation {
 public:
  Evaluation();
  ~Evaluation();
  Evaluation(Evaluation&&) noexcept;
  Evaluation& operator=(Evaluation&&) noexcept;

  void add(ScoredText sample);
  void add(ScoredChoices sample);
  void add(ScoredLoss sample);
  int64_t size() const;

  /// Returns the scores for `names`, in that order. Throws UserError for an unknown name, if there are no samples, if
  /// the samples have another type than the metric needs, or if there are too few references.
  std::vector<Score> scores(const std::vector<std::string>& names);
  /// Returns the texts in the order of their indices.
  const std::vector<ScoredText>& texts();

 private:
  struct Samples;
  std::unique_ptr<Samples> samples_;
};

/// Counts words in the same way as lm-eval does for word_perplexity: the number of pieces between runs of white space.
/// White space at the start or end of the text adds an empty piece, which counts.
int64_t count_words(const std::string& text);

/// One task's section of scores.json.
struct TaskScores {
  std::string task;
  std::vector<Score> scores;
  int64_t samples = 0;
};
/// Returns scores.json in lm-eval's form: results (task: alias, "acc,none", "acc_stderr,none", ...), higher_is_better,
/// n-samples. `config` is JSON text for the key "config"; "" omits the key.
std::string scores_json(const std::vector<TaskScores>& tasks, const std::string& config = "");

/// Returns COCO's result file: [{"image_id": 391895, "caption": "a man ..."}, ...]. Numeric ids are written as numbers.
std::string coco_results_json(const std::vector<ScoredText>& texts);
/// Returns VQA's result file: [{"question_id": 1, "answer": "2"}, ...].
std::string vqa_results_json(const std::vector<ScoredText>& texts);

/// Returns a CSV table with the columns file_name and text and one row for each text. The name of a picture inside
/// `folder` is relative to it; if `folder` is a file, the name is relative to the folder that contains this file.
std::string captions_csv(const std::vector<ScoredText>& texts, const std::string& folder);

/// The references for one picture or question.
struct References {
  std::string id;                  ///< image_id or question_id
  std::string picture;             ///< file_name of COCO's "images"; may be empty
  std::string question;            ///< only for VQA
  std::vector<std::string> texts;  ///< in the order of the file
};
/// Reads COCO's captions ({"images": [{id, file_name}], "annotations": [{image_id, caption}]}) or VQA's answers
/// ({"annotations": [{question_id, image_id, answers: [{answer}]}]}). VQA's questions come from the file `questions`:
/// {"questions": [{question_id, question}]}; "" means no questions. The result is in the order of first mention. Throws
/// UserError naming file and record.
std::vector<References> read_references(const std::string& file, const std::string& questions = "");

/// The title, folder and thumbnails of the page.
struct PageSettings {
  std::string title;   ///< "Captions of coco_val after step 400"
  std::string folder;  ///< folder of the page; links to pictures are relative to it
  /// {ScoredText::picture: a small JPEG in base64}. The page displays the thumbnail instead of the picture.
  std::map<std::string, std::string> thumbnails = {};
};
/// Returns one HTML page with the scores and samples. A thumbnail is shown with a link to its picture. A picture
/// without a thumbnail is loaded from its file when the reader scrolls to it.
std::string evaluation_page(const PageSettings& settings, const std::vector<Score>& scores,
                            const std::vector<ScoredText>& texts);

}  // namespace blipft
