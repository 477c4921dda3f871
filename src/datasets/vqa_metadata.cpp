// Reads VQA's and LAVIS's annotations; see vqa_metadata.h.
#include "datasets/vqa_metadata.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <regex>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "blipft/error.h"
#include "datasets/dataset_formats.h"
#include "datasets/json_index.h"
#include "datasets/record_text.h"
#include "io/json.h"
#include "io/paths.h"

namespace blipft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Returns the list `name` if the file is a VQA file with only this list; else nullopt.
std::optional<JsonList> vqa_list(const std::string& file, const char* name) {
  std::error_code ignored;
  if (!file.ends_with(".json") || !fs::is_regular_file(file, ignored)) return std::nullopt;
  static const std::set<std::string_view> known = {"info",         "license",  "data_subtype", "data_type", "task_type",
                                                   "task_subtype", "questions", "annotations", "licenses"};
  try {
    auto lists = lists_in_object(InputFile(file), [](std::string_view key) { return known.contains(key); });
    if (lists && lists->size() == 1 && lists->front().name == name) return std::move(lists->front());
  } catch (const UserError&) {             // code that opens the file as JSON data reports the error
  }
  return std::nullopt;
}

/// Returns the records of such a list. Throws UserError if the file has changed in the meantime.
std::vector<JsonRecord> records_of(const std::string& file, const char* name) {
  std::optional<JsonList> list = vqa_list(file, name);
  BLIPFT_USER_CHECK(list.has_value(), file, ": is no file of VQA's ", name, " any more; was it changed just now?");
  return std::move(list->records);
}

json record_in(const InputFile& input, const std::string& file, const JsonRecord& record, std::string& location) {
  std::string text(record.bytes, '\0');
  location = concat(file, ":", record.line);
  BLIPFT_USER_CHECK(input.read(record.offset, text.data(), text.size()) == text.size(), location,
                    ": the file ends before this record's end; it has become shorter");
  return parse_json(text, location);
}

bool has_answers(const std::string& file, const JsonList& annotations) {
  std::string location;
  const json first = record_in(InputFile(file), file, annotations.records.front(), location);
  return first.contains("answers") && first.contains("question_id");
}

int64_t number_at(const json& record, const char* key, const std::string& location) {
  BLIPFT_USER_CHECK(record.is_object() && record.contains(key) && record[key].is_number_integer(), location, ": key \"", key,
                    "\" is ", record.is_object() && record.contains(key) ? io::brief(record[key]) : "missing",
                    ", expected a number");
  return record[key].get<int64_t>();
}

/// Counts the keys of a record but these.
void add_unread(const json& record, const std::set<std::string_view>& read, UnreadKeys& unread) {
  for (const auto& item : record.items())
    if (!read.contains(item.key())) unread.add({item.key()});
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

/// Returns the other of VQA's two files, by VQA's naming scheme, or else the only file of its kind in the folder; "":
/// there is none.
std::string companion(const std::string& file, const char* wanted) {
  const fs::path path(file);
  const std::string name = path.filename().string();
  const bool answers = std::string(wanted) == "annotations";
  const std::string other = answers ? replaced(replaced(name, "OpenEnded_", ""), "questions", "annotations")
                                    : replaced(replaced(name, "mscoco", "OpenEnded_mscoco"), "annotations", "questions");
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator item(path.parent_path().empty() ? "." : path.parent_path(), error), end;
       !error && item != end; item.increment(error)) {
    const auto list = item->path().filename() == name ? std::nullopt : vqa_list(item->path().string(), wanted);
    if (!list || (answers && !has_answers(item->path().string(), *list))) continue;
    if (item->path().filename() == other) return item->path().string();
    found.push_back(item->path().string());
  }
  return found.size() == 1 ? found.front() : "";
}

/// Folder and file names of pictures: COCO_train2014_000000000009.jpg, or only the number.
struct PictureNames {
  std::string root, prefix;
  std::string of(int64_t id) const {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%012lld", static_cast<long long>(id));
    return prefix + digits + ".jpg";
  }
};

PictureNames names_for(const std::string& file, int64_t first, const TextSettings& settings) {
  std::smatch match;
  const std::string name = fs::path(file).filename().string();
  const std::string subset = std::regex_search(name, match, std::regex("(train|val|test)[0-9]{4}")) ? match.str() : "";
  const fs::path folder = fs::path(file).parent_path(), above = folder / "..";
  std::vector<fs::path> roots = {folder, folder / subset, folder / "images", above / subset, above / "images" / subset,
                                 above / "images", above};
  if (!settings.pictures.empty()) roots = {settings.pictures, fs::path(settings.pictures) / subset};
  std::string looked;
  for (const fs::path& root : roots) {
    const std::string clean = io::absolute_path(root.empty() ? "." : root.string());
    for (const std::string& prefix : {subset.empty() ? "" : "COCO_" + subset + "_", std::string()}) {
      const PictureNames names{clean, prefix};
      std::error_code ignored;
      if (fs::exists(fs::path(clean) / names.of(first), ignored)) return names;
    }
    looked += (looked.empty() ? "" : ", ") + clean;
  }
  throw UserError(concat(file, ": the picture of its first question, ", PictureNames{"", "COCO_" + subset + "_"}.of(first),
                         ", is in none of the folders ", looked, "; say where the pictures are: data.pictures=FOLDER"));
}

}  // namespace

bool is_vqa(const std::string& path) {
  if (vqa_list(path, "questions")) return true;
  const auto annotations = vqa_list(path, "annotations");
  return annotations && has_answers(path, *annotations);
}

PictureList read_vqa(const std::string& path, const TextSettings& settings) {
  const bool has_prompts = vqa_list(path, "questions").has_value();
  const std::string questions = has_prompts ? path : companion(path, "questions");
  const std::string annotations = has_prompts ? companion(path, "annotations") : path;
  BLIPFT_USER_CHECK(!questions.empty() && (!annotations.empty() || settings.for_prompts), path, ": VQA has two files, and "
                    "the ", has_prompts ? "annotations" : "questions", " are not beside this one; expected ",
                    has_prompts ? "v2_mscoco_..._annotations.json" : "v2_OpenEnded_mscoco_..._questions.json",
                    " in its folder; copy it there");
  std::string location;
  UnreadKeys unread;
  std::unordered_map<int64_t, std::vector<Dataset::Answer>> answers;
  if (!annotations.empty()) {
    const InputFile input(annotations);
    const std::vector<JsonRecord> records = records_of(annotations, "annotations");
    for (const JsonRecord& record : records) {
      const json object = record_in(input, annotations, record, location);
      const int64_t id = number_at(object, "question_id", location);
      BLIPFT_USER_CHECK(object.contains("answers"), location, ": no key \"answers\"");
      answers[id] = answers_from_json(object["answers"], "answers", location);
      add_unread(object, {"question_id", "image_id", "answers"}, unread);
    }
  }
  const InputFile input(questions);
  PictureList list{questions, "", {}};
  std::vector<int64_t> pictures;
  const std::vector<JsonRecord> records = records_of(questions, "questions");
  for (const JsonRecord& record : records) {
    const json object = record_in(input, questions, record, location);
    const int64_t id = number_at(object, "question_id", location);
    BLIPFT_USER_CHECK(object.contains("question") && object["question"].is_string(), location, ": key \"question\" is ",
                      object.contains("question") ? io::brief(object["question"]) : "missing", ", expected a text");
    add_unread(object, {"question_id", "image_id", "question"}, unread);
    const auto known = answers.find(id);
    BLIPFT_USER_CHECK(known != answers.end() || settings.for_prompts, location, ": question_id ", id, " has no answers in ",
                      annotations, "; take the annotations that belong to these questions");
    PictureText text{object["question"].get<std::string>(), {}, {}, std::to_string(id)};
    if (known != answers.end()) text.answers = known->second;
    for (PictureText& one : by_answers(std::move(text), settings)) {
      list.entries.push_back({"", std::move(one), record.line});
      pictures.push_back(number_at(object, "image_id", location));
    }
  }
  const PictureNames names = names_for(questions, pictures.front(), settings);
  for (size_t i = 0; i < pictures.size(); ++i) list.entries[i].file = names.of(pictures[i]);
  list.root = names.root;
  list.unread_keys = unread.text();
  return list;
}

namespace {

/// Sets LAVIS's names for keys that settings.keys does not name.
TextSettings lavis_settings(TextSettings settings) {
  for (const auto& [ours, theirs] : {std::pair{"file_name", "image"}, {"prompt", "question"}})
    if (!settings.keys.contains(ours)) settings.keys[ours] = theirs;
  return settings;
}

}  // namespace

bool is_lavis(const std::string& path) {
  std::error_code ignored;
  if (!path.ends_with(".json") || !fs::is_regular_file(path, ignored)) return false;
  try {
    // A check of the file's beginning avoids scanning most lists of text records.
    std::string begin(size_t{1} << 16, '\0');
    begin.resize(InputFile(path).read(0, begin.data(), begin.size()));
    const size_t first_character = begin.find_first_not_of(" \t\r\n\xef\xbb\xbf");
    if (first_character == std::string::npos || begin[first_character] != '[' || begin.find("\"image\"") == std::string::npos)
      return false;
    std::vector<JsonRecord> records;
    uint32_t checksum = 0;
    if (index_records(InputFile(path), {}, records, checksum) != RecordForm::list || records.empty()) return false;
    std::string location;
    const json first = record_in(InputFile(path), path, records.front(), location);
    const auto has = [&](const char* key) { return first.is_object() && first.contains(key) && first[key].is_string(); };
    return has("image") && (has("question") || has("caption"));
  } catch (const UserError&) {
    return false;
  }
}

PictureList read_lavis(const std::string& path, const TextSettings& settings) {
  TextSettings theirs = lavis_settings(settings);
  std::vector<JsonRecord> records;
  uint32_t checksum = 0;
  const InputFile input(path);
  index_records(input, {}, records, checksum);
  PictureList list{path, settings.pictures.empty() ? fs::path(path).parent_path().string() : settings.pictures, {}};
  std::string location;
  UnrenderedKeys unrendered(settings);
  UnreadKeys unread;
  for (const JsonRecord& record : records) {
    const json object = record_in(input, path, record, location);
    unrendered.look_at(object, location);
    TextSettings own = theirs;
    if (object.is_object() && !object.contains(name_of(theirs, "prompt"))) own.keys.erase("prompt");  // a caption
    const std::string file_key = name_of(theirs, "file_name");
    BLIPFT_USER_CHECK(object.is_object() && object.contains(file_key) && object[file_key].is_string(), location, ": key \"",
                      file_key, "\" is ", object.is_object() && object.contains(file_key) ? io::brief(object[file_key])
                                                                                         : "missing",
                      ", expected the picture's path");
    for (PictureText& one : by_answers(picture_text_from_json(object, own, location), settings))
      list.entries.push_back({object[file_key].get<std::string>(), std::move(one), record.line});
    unread.add(unread_keys_of_picture(object, own));
  }
  unrendered.check();
  list.unread_keys = unread.text();
  if (list.root.empty()) list.root = ".";
  return list;
}

}  // namespace blipft
