// References as COCO and VQA publish them.
#include <map>

#include "blipft/error.h"
#include "blipft/evaluate.h"
#include "io/file.h"
#include "io/json.h"

namespace blipft {
namespace {

using Json = nlohmann::json;
constexpr int64_t most_bytes = int64_t{4} << 30;

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.is_number_integer() ? value.dump() : "";
}

/// Hands over each record of the top lists, and keeps none: VQA's annotations have hundreds of megabytes.
template <class Take>
void for_each_record(const std::string& file, const Take& take) {
  std::string list;
  int64_t number = 0;
  io::parse_json(io::read_whole_file(file, most_bytes), file, [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth == 1 && event == Json::parse_event_t::key) {
      list = value.get<std::string>();
      number = 0;
    }
    if (depth != 2 || event != Json::parse_event_t::object_end) return true;
    take(list, value, concat(file, ": ", list, "[", number++, "]"));
    return false;
  });
}

std::string wanted(const Json& record, const char* key, const std::string& place) {
  const auto found = record.find(key);
  const std::string text = found == record.end() ? "" : text_of(*found);
  BLIPFT_USER_CHECK(found != record.end() && (found->is_string() || found->is_number_integer()), place, ": found ",
                    io::brief(record), ", expected a text or a number under \"", key, "\"");
  return text;
}

class Collector {
 public:
  void take(const std::string& list, const Json& record, const std::string& place) {
    if (list == "images") pictures_[wanted(record, "id", place)] = wanted(record, "file_name", place);
    if (list == "questions") questions_[wanted(record, "question_id", place)] = wanted(record, "question", place);
    if (list != "annotations") return;
    if (record.contains("caption")) {
      const std::string picture = wanted(record, "image_id", place);
      of(picture, picture).texts.push_back(wanted(record, "caption", place));
    } else if (record.contains("answers")) {
      auto& all = of(wanted(record, "question_id", place), wanted(record, "image_id", place));
      for (const auto& answer : record["answers"])
        all.texts.push_back(answer.is_string() ? answer.get<std::string>() : wanted(answer, "answer", place));
    } else {
      throw UserError(concat(place, ": found ", io::brief(record), ", expected the key \"caption\" (COCO's captions) or "
                             "\"answers\" (VQA's annotations)"));
    }
  }
  std::vector<References> all(const std::string& file) {
    BLIPFT_USER_CHECK(!references_.empty(), file, ": found no record in a list \"annotations\"; expected COCO's "
                      "captions_*.json or VQA's *_annotations.json");
    for (auto& one : references_) {
      // What the picture is called until all is read: its number.
      const auto picture = pictures_.find(one.picture);
      one.picture = picture == pictures_.end() ? "" : picture->second;
      if (const auto question = questions_.find(one.id); question != questions_.end()) one.question = question->second;
    }
    return std::move(references_);
  }

 private:
  References& of(const std::string& id, const std::string& picture) {
    const auto [found, added] = places_.try_emplace(id, references_.size());
    if (added) references_.push_back({id, picture, "", {}});
    return references_[found->second];
  }

  std::vector<References> references_;
  std::map<std::string, size_t> places_;
  std::map<std::string, std::string> pictures_, questions_;
};

}  // namespace

std::vector<References> read_references(const std::string& file, const std::string& questions) {
  Collector collector;
  const auto take = [&](const auto& list, const auto& record, const auto& place) { collector.take(list, record, place); };
  if (!questions.empty()) for_each_record(questions, take);
  for_each_record(file, take);
  return collector.all(file);
}

}  // namespace blipft
