// Scores of what a model said: captions and answers against references, choices by their log-likelihoods, texts by
// theirs.
//
// Every number is that of a published tool, down to its oddities; docs/evaluation.md says of which and where they
// differ.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace blipft {

/// What a metric is computed from.
enum class MetricInput {
  texts,    ///< ScoredText: what was generated and the references
  choices,  ///< ScoredChoices: log-likelihoods of several answers
  losses,   ///< ScoredLoss: the log-likelihood of a whole text
};

struct Metric {
  std::string name;  ///< as a run file and scores.json call it
  MetricInput input;
  bool higher_is_better;
  std::string about;  ///< half a line, with the source
};

/// Every metric there is.
const std::vector<Metric>& metrics();
/// The metric of that name; UserError that lists all names where there is none. `place` (a file and key) begins the
/// message.
const Metric& find_metric(const std::string& name, const std::string& place);

/// A generated text. Indices say the order of samples, whatever order they are added in; two with the same are an
/// error.
struct ScoredText {
  int64_t index = 0;
  std::string id;      ///< for result files: "391895"
  std::string prompt;  ///< shown, not scored; may be empty
  std::string candidate;
  std::vector<std::string> references;  ///< at least one; for vqa_accuracy at least two
  std::string picture;                  ///< file; shown, not scored; may be empty
};

/// A question with answers to choose from.
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
  int64_t tokens = 0;         ///< predicted
  int64_t words = 0;          ///< of the raw text: count_words(); 0 where nobody asks for word_perplexity
  int64_t bytes = 0;          ///< of the raw text; 0 where nobody asks for byte_perplexity or bits_per_byte
};

struct Score {
  std::string metric;
  double value = 0;
  std::optional<double> standard_error;  ///< of metrics that are means over samples, for more than one sample
  std::vector<double> by_sample;         ///< in the order of indices; empty where a sample has no score of its own
};

/// Collects what a whole set was answered and scores it. All samples of one kind; the order of adding changes no bit.
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

  /// The scores of `names`, in that order. Throws UserError: unknown name, no samples, samples of another kind than the
  /// metric takes, or too few references.
  std::vector<Score> scores(const std::vector<std::string>& names);
  /// The texts, in the order of indices.
  const std::vector<ScoredText>& texts();

 private:
  struct Samples;
  std::unique_ptr<Samples> samples_;
};

/// Words as lm-eval counts them for word_perplexity: pieces between runs of white space. White space at an end leaves
/// an empty piece there, which counts.
int64_t count_words(const std::string& text);

/// One task's part of scores.json.
struct TaskScores {
  std::string task;
  std::vector<Score> scores;
  int64_t samples = 0;
};
/// scores.json in lm-eval's form: results (task: alias, "acc,none", "acc_stderr,none", ...), higher_is_better,
/// n-samples. `config`: JSON text that goes under "config"; "": none.
std::string scores_json(const std::vector<TaskScores>& tasks, const std::string& config = "");

/// COCO's result file: [{"image_id": 391895, "caption": "a man ..."}, ...]. An id that is a number is written as one.
std::string coco_results_json(const std::vector<ScoredText>& texts);
/// VQA's result file: [{"question_id": 1, "answer": "2"}, ...].
std::string vqa_results_json(const std::vector<ScoredText>& texts);

/// A table with the columns file_name and text and a row for each text. A picture inside `folder` is named relative to
/// it; if `folder` is a file, relative to the file's folder.
std::string captions_csv(const std::vector<ScoredText>& texts, const std::string& folder);

/// References of one picture or question.
struct References {
  std::string id;                  ///< image_id or question_id
  std::string picture;             ///< file_name of COCO's "images"; may be empty
  std::string question;            ///< of VQA
  std::vector<std::string> texts;  ///< in the file's order
};
/// Reads COCO's captions ({"images": [{id, file_name}], "annotations": [{image_id, caption}]}) or VQA's answers
/// ({"annotations": [{question_id, image_id, answers: [{answer}]}]}, the questions from `questions`:
/// {"questions": [{question_id, question}]}; "": none). In the order of first mention. Throws UserError naming file and
/// record.
std::vector<References> read_references(const std::string& file, const std::string& questions = "");

/// What the page says above the samples.
struct PageSettings {
  std::string title;   ///< "Captions of coco_val after step 400"
  std::string folder;  ///< where the page will lie: links to pictures are relative to it
  std::map<std::string, std::string> thumbnails = {};  ///< {ScoredText::picture: a small JPEG in base64}, shown in its place
};
/// One HTML page. It shows the thumbnails that it is given, each with a link to the picture; other pictures it loads from
/// where they lie, as they come into sight.
std::string evaluation_page(const PageSettings& settings, const std::vector<Score>& scores,
                            const std::vector<ScoredText>& texts);

}  // namespace blipft
