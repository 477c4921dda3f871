// scores.json, the result files of COCO and VQA, and the reference files of both.
#include <charconv>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "blipft/error.h"
#include "blipft/evaluate.h"
#include "io/file.h"
#include "io/json.h"
#include "text/unicode.h"

namespace blipft {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

// Ids of COCO and VQA are numbers; ids of other data sets may be any text.
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

// Returns a CSV field as defined by RFC 4180.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

constexpr int64_t max_bytes = int64_t{4} << 30;

std::string text_of(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.is_number_integer() ? value.dump() : "";
}

/// Calls `take` for each record of the top-level lists, and stores none: VQA's annotations have hundreds of megabytes.
template <class Take>
void for_each_record(const std::string& file, const Take& take) {
  std::string list;
  int64_t number = 0;
  io::parse_json(io::read_whole_file(file, max_bytes), file,
                 [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
                   if (depth == 1 && event == nlohmann::json::parse_event_t::key) {
                     list = value.get<std::string>();
                     number = 0;
                   }
                   if (depth != 2 || event != nlohmann::json::parse_event_t::object_end) return true;
                   take(list, value, concat(file, ": ", list, "[", number++, "]"));
                   return false;
                 });
}

std::string wanted(const nlohmann::json& record, const char* key, const std::string& location) {
  const auto found = record.find(key);
  const std::string text = found == record.end() ? "" : text_of(*found);
  BLIPFT_USER_CHECK(found != record.end() && (found->is_string() || found->is_number_integer()), location, ": found ",
                    io::brief(record), ", expected a text or a number under \"", key, "\"");
  return text;
}

class Collector {
 public:
  void take(const std::string& list, const nlohmann::json& record, const std::string& location) {
    if (list == "images") pictures_[wanted(record, "id", location)] = wanted(record, "file_name", location);
    if (list == "questions") questions_[wanted(record, "question_id", location)] = wanted(record, "question", location);
    if (list != "annotations") return;
    if (record.contains("caption")) {
      const std::string picture = wanted(record, "image_id", location);
      of(picture, picture).texts.push_back(wanted(record, "caption", location));
    } else if (record.contains("answers")) {
      auto& all = of(wanted(record, "question_id", location), wanted(record, "image_id", location));
      BLIPFT_USER_CHECK(record["answers"].is_array(), location, ": found ", io::brief(record),
                        ", expected a list under \"answers\"");
      for (const auto& answer : record["answers"])
        all.texts.push_back(answer.is_string() ? answer.get<std::string>() : wanted(answer, "answer", location));
    } else {
      throw UserError(concat(location, ": found ", io::brief(record),
                             ", expected the key \"caption\" (COCO's captions) or "
                             "\"answers\" (VQA's annotations)"));
    }
  }
  std::vector<References> all(const std::string& file) {
    BLIPFT_USER_CHECK(!references_.empty(), file,
                      ": found no record in a list \"annotations\"; expected COCO's "
                      "captions_*.json or VQA's *_annotations.json");
    for (auto& one : references_) {
      // Until all records are read, `picture` holds the image id. Replace it by the file name.
      const auto picture = pictures_.find(one.picture);
      one.picture = picture == pictures_.end() ? "" : picture->second;
      if (const auto question = questions_.find(one.id); question != questions_.end()) one.question = question->second;
    }
    return std::move(references_);
  }

 private:
  References& of(const std::string& id, const std::string& picture) {
    const auto [found, added] = indices_.try_emplace(id, references_.size());
    if (added) references_.push_back({id, picture, "", {}});
    return references_[found->second];
  }

  std::vector<References> references_;
  std::map<std::string, size_t> indices_;
  std::map<std::string, std::string> pictures_, questions_;
};

}  // namespace

std::string scores_json(const std::vector<TaskScores>& tasks, const std::string& config) {
  // Keys end with the name of lm-eval's filter; "none" means unfiltered output.
  Json out{{"results", Json::object()}, {"higher_is_better", Json::object()}, {"n-samples", Json::object()}};
  for (const auto& task : tasks) {
    Json result{{"alias", task.task}}, better = Json::object();
    for (const auto& score : task.scores) {
      result[score.metric + ",none"] = score.value;
      // lm-eval writes "N/A" if there is no standard error.
      result[score.metric + "_stderr,none"] = score.standard_error ? Json(*score.standard_error) : Json("N/A");
      better[score.metric] = find_metric(score.metric, "").higher_is_better;
    }
    out["results"][task.task] = result;
    out["higher_is_better"][task.task] = better;
    out["n-samples"][task.task] = {{"original", task.samples}, {"effective", task.samples}};
  }
  if (!config.empty()) out["config"] = io::parse_json<Json>(config, "the configuration");
  return out.dump(2) + "\n";
}

std::string coco_results_json(const std::vector<ScoredText>& texts) { return results(texts, "image_id", "caption"); }
std::string vqa_results_json(const std::vector<ScoredText>& texts) { return results(texts, "question_id", "answer"); }

std::string captions_csv(const std::vector<ScoredText>& texts, const std::string& folder) {
  std::error_code ignored;
  std::string root = fs::is_directory(folder, ignored) ? folder : fs::path(folder).parent_path().string();
  while (root.ends_with('/')) root.pop_back();
  std::string out = "file_name,text\n";
  for (const ScoredText& text : texts) {
    const bool inside = !root.empty() && text.picture.starts_with(root + "/");
    const std::string name = inside ? text.picture.substr(root.size() + 1) : text.picture;
    out += csv_field(unicode::repair_utf8(name)) + "," + csv_field(unicode::repair_utf8(text.candidate)) + "\n";
  }
  return out;
}

std::vector<References> read_references(const std::string& file, const std::string& questions) {
  Collector collector;
  const auto take = [&](const auto& list, const auto& record, const auto& location) {
    collector.take(list, record, location);
  };
  if (!questions.empty()) for_each_record(questions, take);
  for_each_record(file, take);
  return collector.all(file);
}

}  // namespace blipft
