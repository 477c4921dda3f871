// Reading the metadata of an ImageFolder; see image_metadata.h.
#include "datasets/image_metadata.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "blipft/error.h"
#include "datasets/csv.h"
#include "datasets/dataset_formats.h"
#include "datasets/json_index.h"
#include "datasets/picture_format.h"
#include "datasets/picture_table.h"
#include "datasets/record_text.h"
#include "datasets/vqa_metadata.h"
#include "io/file.h"
#include "io/gzip.h"
#include "io/json.h"
#include "io/paths.h"

namespace blipft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The whole file is held in memory.
constexpr int64_t max_metadata_bytes = int64_t{2} << 30;

std::string read_text(const std::string& file) {
  std::string text = io::is_gzip_name(file) ? io::read_gzip(file, max_metadata_bytes)
                                            : io::read_whole_file(file, max_metadata_bytes);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // byte order mark
  return text;
}

bool is_blank(const std::string& line) { return line.find_first_not_of(" \t\r") == std::string::npos; }

/// Returns the name of the picture in a record.
std::string picture_name(const json& object, const TextSettings& settings, const std::string& location) {
  const std::string& key = name_of(settings, "file_name");
  const auto name = object.find(key);
  BLIPFT_USER_CHECK(name != object.end(), location, ": no key \"", key, "\", expected the picture's path; where another key "
                    "has it, say which: data.keys={file_name: KEY} (in quotes on a command line)");
  BLIPFT_USER_CHECK(name->is_string() && !name->get_ref<const std::string&>().empty(), location, ": key \"", key, "\" is ",
                    io::brief(*name), ", expected the picture's path");
  return name->get<std::string>();
}

std::vector<PictureEntry> parse_jsonl(const std::string& file, const TextSettings& settings, UnreadKeys& unread) {
  std::vector<PictureEntry> entries;
  const std::string text = read_text(file);
  UnrenderedKeys unrendered(settings);
  int64_t line = 0;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    const std::string row = text.substr(start, end - start);
    start = end + 1;
    ++line;
    if (is_blank(row)) continue;
    const std::string location = concat(file, ":", line);
    const json object = parse_json(row, location);
    unrendered.look_at(object, location);
    for (PictureText& one : by_answers(picture_text_from_json(object, settings, location), settings))
      entries.push_back({picture_name(object, settings, location), std::move(one), line});
    unread.add(unread_keys_of_picture(object, settings));
  }
  unrendered.check();
  return entries;
}

std::vector<PictureEntry> parse_csv(const std::string& file, const TextSettings& settings, UnreadKeys& unread) {
  const std::string text = read_text(file);
  CsvReader reader(file, text, 1, csv_separator(text));
  std::vector<std::string> fields;
  BLIPFT_USER_CHECK(reader.next(fields), file, ": empty, expected a header line with the columns file_name and text");
  const std::vector<std::string> columns = csv_columns(file, fields);
  const auto column = [&](const std::string& name) {
    return static_cast<size_t>(std::find(columns.begin(), columns.end(), name) - columns.begin());
  };
  const std::string& name_key = name_of(settings, "file_name");
  const std::string& text_key = name_of(settings, "text");
  const size_t name = column(name_key);
  const bool renamed = settings.keys.contains("text");
  const size_t caption = renamed || column("text") < columns.size() ? column(text_key) : column("caption");
  const char* const advice = "; where another column has it, say which: data.keys=";
  BLIPFT_USER_CHECK(name < columns.size(), file, ":1: no column \"", name_key, "\" in the header", advice,
                    "{file_name: COLUMN} (in quotes on a command line)");
  const bool has_prompts = column(name_of(settings, "prompt")) < columns.size() &&
                    (settings.for_prompts || column(name_of(settings, "answer")) < columns.size());
  BLIPFT_USER_CHECK(caption < columns.size() || has_prompts || settings.for_prompts, file, ":1: no column \"", text_key, "\"", renamed ? "" : " (or \"caption\")",
                    " in the header", advice, "{text: COLUMN} (in quotes on a command line)");
  std::vector<PictureEntry> entries;
  UnrenderedKeys unrendered(settings);
  while (reader.next(fields)) {
    if (fields.size() == 1 && is_blank(fields[0])) continue;
    const std::string location = concat(file, ":", reader.line());
    check_csv_fields(location, fields.size(), columns.size());
    BLIPFT_USER_CHECK(!fields[name].empty(), location, ": column \"", name_key, "\" is empty");
    json object = json::object();
    for (size_t i = 0; i < fields.size(); ++i) object[columns[i]] = fields[i];
    unrendered.look_at(object, location);
    for (PictureText& one : by_answers(picture_text_from_json(object, settings, location), settings))
      entries.push_back({fields[name], std::move(one), reader.line()});
    unread.add(unread_keys_of_picture(object, settings));
  }
  unrendered.check();
  return entries;
}

// ---------------------------------------------------------------- COCO

/// Returns the lists "images" and "annotations" if the file is an object with only COCO's keys.
std::optional<std::vector<JsonList>> coco_lists(const std::string& file) {
  static const std::set<std::string_view> known = {"info", "licenses", "images", "annotations", "categories", "type"};
  auto lists = lists_in_object(InputFile(file), [](std::string_view key) { return known.contains(key); });
  if (!lists) return std::nullopt;
  std::erase_if(*lists, [](const JsonList& list) { return list.name != "images" && list.name != "annotations"; });
  if (lists->size() != 2) return std::nullopt;
  if (lists->front().name != "images") std::swap(lists->front(), lists->back());
  return lists;
}

/// Calls take(record, place, line) for each record of a list.
template <class Take>
void for_each_record(const InputFile& input, const std::string& file, const JsonList& list, const Take& take) {
  std::string text;
  for (const JsonRecord& record : list.records) {
    const std::string location = concat(file, ":", record.line, " (", list.name, " ", &record - list.records.data() + 1, ")");
    text.resize(record.bytes);
    BLIPFT_USER_CHECK(input.read(record.offset, text.data(), text.size()) == text.size(), location,
                      ": the file ends before this record's end; it has become shorter");
    take(parse_json(text, location), location, record.line);
  }
}

/// Returns an id, which is a number or a string, as text.
std::string id_of(const json& object, const char* key, const std::string& location) {
  const auto id = object.find(key);
  BLIPFT_USER_CHECK(id != object.end() && (id->is_number_integer() || id->is_string()), location, ": key \"", key, "\" is ",
                    id == object.end() ? "missing" : io::brief(*id), ", expected the id of a picture");
  return id->dump();
}

/// Returns the folder of COCO's pictures: near the annotations, possibly in a folder named after the split.
std::string coco_root(const std::string& file, const std::string& picture, const TextSettings& settings) {
  if (!settings.pictures.empty()) return settings.pictures;
  const fs::path folder = fs::path(file).parent_path(), above = folder / "..";
  const std::string stem = fs::path(file).stem().string();
  const size_t underscore = stem.rfind('_');
  const std::string split = underscore == std::string::npos ? stem : stem.substr(underscore + 1);
  std::string looked;
  for (const fs::path& root : {folder, folder / split, folder / "images", above / split, above / "images" / split,
                               above / "images", above}) {
    std::error_code ignored;
    const fs::path clean = io::absolute_path(root.empty() ? "." : root.string());
    if (fs::exists(clean / picture, ignored)) return clean.string();
    looked += concat(looked.empty() ? "" : ", ", clean.string());
  }
  throw UserError(concat(file, ": its first picture, ", brief(picture), ", is in none of the folders ", looked,
                         "; say where the pictures are: data.pictures=FOLDER"));
}

PictureList read_coco(const std::string& file, const TextSettings& settings) {
  const std::vector<JsonList> lists = *coco_lists(file);
  const InputFile input(file);
  std::unordered_map<std::string, std::string> names;
  for_each_record(input, file, lists[0], [&](const json& image, const std::string& location, int64_t) {
    names.emplace(id_of(image, "id", location), picture_name(image, settings, location));
  });
  PictureList list{file, "", {}};
  for_each_record(input, file, lists[1], [&](const json& annotation, const std::string& location, int64_t line) {
    const auto name = names.find(id_of(annotation, "image_id", location));
    BLIPFT_USER_CHECK(name != names.end(), location, ": key \"image_id\" is ", io::brief(annotation["image_id"]),
                      ", and \"images\" has no picture of this id");
    const bool named = settings.for_prompts || settings.keys.contains("text") || annotation.contains("caption") || annotation.contains("text");
    BLIPFT_USER_CHECK(named, location, ": no key \"caption\": these annotations are no captions; choose the file "
                      "of the captions (captions_*.json)");
    list.entries.push_back({name->second, {std::nullopt, captions_from_json(annotation, settings, location), {},
                                           id_of(annotation, "image_id", location)}, line});
  });
  list.root = coco_root(file, list.entries.front().file, settings);
  return list;
}

// ---------------------------------------------------------------- a .txt file next to each picture

// Names with a leading period belong to desktops: previews, macOS's "._photo.jpg".
bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

// Calls `see` for each file in `folder` and its subfolders until `see` returns false. Links to folders are not
// followed.
void for_each_file(const std::string& folder, const std::function<bool(const fs::path&)>& see) {
  std::error_code error;
  fs::recursive_directory_iterator item(folder, fs::directory_options::skip_permission_denied, error);
  for (const fs::recursive_directory_iterator end; !error && item != end; item.increment(error)) {
    std::error_code unread;
    if (item->is_directory(unread)) {
      if (is_hidden(item->path())) item.disable_recursion_pending();
    } else if (!see(item->path())) {
      return;
    }
  }
}

bool is_listed(const fs::path& path) { return has_supported_suffix(path.string()) && !is_hidden(path); }

PictureList read_text_captions(const std::string& folder, bool for_prompts) {
  PictureList list{folder, folder, {}};
  std::set<std::string> texts;
  std::error_code error;
  for (fs::directory_iterator item(folder, error), end; !error && item != end; item.increment(error)) {
    const std::string name = item->path().filename().string();
    if (has_supported_suffix(name) || !unsupported_suffix(name).empty()) list.entries.push_back({name, {}, 0, true});
    if (name.ends_with(".txt")) texts.insert(name);
  }
  std::sort(list.entries.begin(), list.entries.end(),
            [](const PictureEntry& a, const PictureEntry& b) { return a.file < b.file; });
  std::erase_if(list.entries, [&](const PictureEntry& entry) {  // keep unsupported pictures only if they have a
                                                                // caption: such samples are reported
    return !unsupported_suffix(entry.file).empty() && !texts.contains(caption_file_of(entry.file));
  });
  int64_t absent = 0;
  const PictureEntry* first = nullptr;
  for (PictureEntry& entry : list.entries) {
    if (texts.contains(caption_file_of(entry.file))) continue;
    if (for_prompts) entry.text_next_to = false;
    else if (absent++ == 0) first = &entry;
  }
  BLIPFT_USER_CHECK(absent == 0, folder, ": the picture ", brief(first->file), " has no caption beside it, expected ",
                    brief(caption_file_of(first->file)), " (", absent, " of ", list.entries.size(),
                    " pictures have none); write it, or move these pictures away");
  return list;
}

bool is_coco(const std::string& path) {
  std::error_code ignored;
  if (!path.ends_with(".json") || !fs::is_regular_file(path, ignored)) return false;
  try {
    return coco_lists(path).has_value();
  } catch (const UserError&) {             // code that opens the file as JSON data reports the error
    return false;
  }
}

}  // namespace

std::string caption_file_of(const std::string& picture) { return fs::path(picture).replace_extension(".txt").string(); }

std::string find_metadata(const std::string& path, const TextSettings& settings) {
  for (const fs::path& directory : {fs::path(path), fs::path(path) / "train"})
    for (const char* name : {"metadata.jsonl", "metadata.csv"}) {
      std::error_code ignored;
      if (fs::is_regular_file(directory / name, ignored)) return (directory / name).string();
    }
  if (is_coco(path) || is_vqa(path) || is_lavis(path)) return path;
  const auto table = find_picture_table(path, settings);
  return table && !table->root.empty() ? table->file : "";
}

bool has_text_captions(const std::string& path) {
  std::error_code error;
  for (fs::directory_iterator item(path, error), end; !error && item != end; item.increment(error)) {
    std::error_code ignored;
    const std::string name = item->path().string();
    if (!has_supported_suffix(name) && unsupported_suffix(name).empty()) continue;
    if (fs::is_regular_file(caption_file_of(item->path().string()), ignored)) return true;
  }
  return false;
}

bool has_pictures_alone(const std::string& path) {
  if (!find_metadata(path).empty() || has_text_captions(path)) return false;
  bool found = false;
  for_each_file(path, [&](const fs::path& file) { return !(found = is_listed(file)); });
  return found;
}

PictureList list_pictures_alone(const std::string& folder) {
  PictureList list{folder, folder, {}, "", 0};
  if (!find_metadata(folder).empty() || has_text_captions(folder)) return list;
  for_each_file(folder, [&](const fs::path& file) {
    if (is_listed(file)) list.entries.push_back({file.lexically_relative(folder).string(), {}, 0});
    else ++*list.others;
    return true;
  });
  std::sort(list.entries.begin(), list.entries.end(),
            [](const PictureEntry& a, const PictureEntry& b) { return a.file < b.file; });
  return list;
}

PictureList read_picture_list(const std::string& path, const TextSettings& settings) {
  const std::string metadata = find_metadata(path, settings);
  if (metadata.empty() && has_text_captions(path)) return read_text_captions(path, settings.for_prompts);
  if (metadata.empty() && settings.for_prompts)
    if (PictureList list = list_pictures_alone(path); !list.entries.empty()) return list;
  BLIPFT_USER_CHECK(!metadata.empty(), "no ImageFolder at ", path,
                    ": expected metadata.jsonl or metadata.csv there or in train/, or a .txt beside each picture, or a "
                    "JSON file of COCO's captions, or VQA's or LAVIS's annotations",
                    has_pictures_alone(path) ? concat("; ", kPicturesAlone) : "");
  if (metadata == path && is_vqa(path)) return read_vqa(path, settings);
  if (metadata == path && is_coco(path)) return read_coco(path, settings);
  if (metadata == path && is_lavis(path)) return read_lavis(path, settings);
  const auto table = find_picture_table(metadata, settings);
  const bool found = table && !table->root.empty();  // if not found, a later message names what is missing
  const TextSettings& named = found ? table->settings : settings;
  const std::string folder = settings.pictures.empty() ? fs::path(metadata).parent_path().string() : settings.pictures;
  const bool jsonl = record_suffix(metadata) == ".jsonl";
  UnreadKeys unread;
  PictureList list{metadata, found ? table->root : folder, (jsonl ? parse_jsonl : parse_csv)(metadata, named, unread)};
  list.unread_keys = unread.text();
  return list;
}

}  // namespace blipft
