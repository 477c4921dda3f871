// Tables of pictures; see picture_table.h.
#include "datasets/picture_table.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "blipft/error.h"
#include "datasets/csv.h"
#include "datasets/dataset_formats.h"
#include "datasets/json_index.h"
#include "datasets/picture_format.h"
#include "datasets/record_text.h"
#include "io/gzip.h"

namespace blipft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Returns the beginning of a file's text, long enough for its first record.
std::string beginning(const std::string& file) {
  constexpr int64_t kBytes = int64_t{1} << 16;
  std::string text(static_cast<size_t>(kBytes), '\0');
  if (io::is_gzip_name(file)) text = io::read_gzip_start(file, kBytes);
  else text.resize(InputFile(file).read(0, text.data(), text.size()));
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // byte order mark
  return text;
}

// Returns the first record as an object, and its keys in their order.
std::optional<std::pair<json, std::vector<std::string>>> first_record(const std::string& file) {
  const std::string suffix = record_suffix(file), text = beginning(file);
  json object = json::object();
  std::vector<std::string> names, fields;
  if (suffix == ".jsonl") {
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string::npos) return std::nullopt;
    object = parse_json(text.substr(begin, text.find('\n', begin) - begin), file);
    if (!object.is_object()) return std::nullopt;
    for (const auto& item : object.items()) names.push_back(item.key());
    return std::pair(object, names);
  }
  if (suffix != ".csv" && suffix != ".tsv") return std::nullopt;
  CsvReader reader(file, text, 1, csv_separator(text));
  if (!reader.next(names) || !reader.next(fields) || fields.size() != names.size()) return std::nullopt;
  for (size_t i = 0; i < names.size(); ++i) object[names[i]] = fields[i];
  return std::pair(object, names);
}

bool is_picture_value(const json& value) {
  if (!value.is_string()) return false;
  const std::string& name = value.get_ref<const std::string&>();
  return name.size() < 4096 && (has_supported_suffix(name) || !unsupported_suffix(name).empty());
}

std::optional<PictureTable> table_in(const std::string& file, const TextSettings& settings) {
  const auto first = first_record(file);
  if (!first || has_prompted_text(first->first, settings)) return std::nullopt;
  const json& record = first->first;
  PictureTable table{file, "", "", "", settings};
  for (const std::string& name : first->second)
    if (table.column.empty() && is_picture_value(record[name])) table.column = name;
  const std::string& file_name = name_of(settings, "file_name");
  if (record.contains(file_name) && record[file_name].is_string()) table.column = file_name;
  else if (settings.keys.contains("file_name")) return std::nullopt;
  if (table.column.empty()) return std::nullopt;
  table.picture = record[table.column].get<std::string>();
  table.settings.keys["file_name"] = table.column;
  const auto is_free = [&](const char* key) { return !settings.keys.contains(key) && !record.contains(key); };
  if (is_free("prompt") && is_free("answer") && is_free("text") && is_free("caption") && record.contains("question")) {
    table.settings.keys["prompt"] = "question";
    if (record.contains("answers")) table.settings.keys["answer"] = "answers";
  }
  const fs::path folder = fs::path(file).parent_path();
  std::vector<fs::path> roots = {folder, folder / "images"};
  if (!settings.pictures.empty()) roots = {settings.pictures};
  for (const fs::path& root : roots) {
    std::error_code ignored;
    if (table.root.empty() && fs::is_regular_file(root / table.picture, ignored)) table.root = root.empty() ? "." : root.string();
  }
  return table;
}

}  // namespace

std::optional<PictureTable> find_picture_table(const std::string& path, const TextSettings& settings) {
  const std::vector<std::string> files = find_json_files(path);
  if (files.size() != 1) return std::nullopt;
  try {
    return table_in(files.front(), settings);
  } catch (const UserError&) {             // code that opens the file as records reports the error
    return std::nullopt;
  }
}

std::string picture_table_advice(const std::string& path, const TextSettings& settings) {
  for (const std::string& file : find_json_files(path)) {
    const auto table = find_picture_table(file, settings);
    if (!table) continue;
    const std::string found = concat("; ", file, " has names of pictures in the column \"", brief(table->column), "\"");
    if (!table->root.empty()) return concat(found, ": choose this table with data.path=", file);
    return concat(found, ", but there is no ", (fs::path(file).parent_path() / table->picture).string(),
                  ": say where the pictures are with data.pictures=FOLDER");
  }
  return "";
}

}  // namespace blipft
