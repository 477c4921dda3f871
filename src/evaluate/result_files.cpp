// scores.json and the result files of COCO and VQA.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>

#include "blipft/evaluate.h"
#include "data/unicode.h"

namespace blipft {
namespace {

using Json = nlohmann::ordered_json;

// Ids of COCO and VQA are numbers; those of other sets may be anything.
Json id_value(const std::string& id) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), number);
  if (error == std::errc() && end == id.data() + id.size() && std::to_string(number) == id) return number;
  return unicode::repair_utf8(id);
}

std::string results(const std::vector<ScoredText>& texts, const char* id, const char* answer) {
  std::string out = "[";
  for (const auto& text : texts) {
    const Json record{{id, id_value(text.id)}, {answer, unicode::repair_utf8(text.candidate)}};
    out += (out.size() > 1 ? ",\n" : "\n") + record.dump();
  }
  return out + "\n]\n";
}

}  // namespace

std::string scores_json(const std::vector<TaskScores>& tasks, const std::string& config) {
  // Keys end with the name of lm-eval's filter; "none" is what was generated, unfiltered.
  Json out{{"results", Json::object()}, {"higher_is_better", Json::object()}, {"n-samples", Json::object()}};
  for (const auto& task : tasks) {
    Json result{{"alias", task.task}}, better = Json::object();
    for (const auto& score : task.scores) {
      result[score.metric + ",none"] = score.value;
      // "N/A": lm-eval's word for no standard error.
      result[score.metric + "_stderr,none"] = score.standard_error ? Json(*score.standard_error) : Json("N/A");
      better[score.metric] = find_metric(score.metric, "").higher_is_better;
    }
    out["results"][task.task] = result;
    out["higher_is_better"][task.task] = better;
    out["n-samples"][task.task] = {{"original", task.samples}, {"effective", task.samples}};
  }
  if (!config.empty()) out["config"] = Json::parse(config);
  return out.dump(2) + "\n";
}

std::string coco_results_json(const std::vector<ScoredText>& texts) { return results(texts, "image_id", "caption"); }
std::string vqa_results_json(const std::vector<ScoredText>& texts) { return results(texts, "question_id", "answer"); }

}  // namespace blipft
