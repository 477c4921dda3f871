// open_dataset: detects the format at a path and opens the dataset.
#include <algorithm>
#include <charconv>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "blipft/error.h"
#include "datasets/dataset_formats.h"
#include "datasets/picture_table.h"
#include "datasets/record_text.h"
#include "io/json.h"

namespace blipft {
namespace {

namespace fs = std::filesystem;

/// Copies saved by the datasets library contain JSON files that are not data.
bool is_saved_by_datasets(const std::string& path) {
  std::error_code ignored;
  const fs::path folder = path;
  return fs::exists(folder / "state.json", ignored) || fs::exists(folder / "dataset_dict.json", ignored);
}

/// Returns a file of pyarrow's formats: `path` itself, or a file in this folder or its direct subfolders; "": none.
std::string columnar_file(const fs::path& path) {
  const auto is_columnar = [](const fs::path& file) {
    return file.extension() == ".parquet" || file.extension() == ".arrow" || file.extension() == ".feather";
  };
  if (is_columnar(path)) return path.string();
  std::error_code error;
  for (fs::recursive_directory_iterator item(path, error), end; !error && item != end; item.increment(error)) {
    if (is_columnar(item->path())) return item->path().string();
    if (item.depth() >= 1) item.disable_recursion_pending();
  }
  return {};
}

/// Returns a description of a path that is not a dataset, with advice.
std::string hint(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return "it does not exist; check data.path";
  if (const std::string file = columnar_file(path); is_saved_by_datasets(path) || !file.empty())
    return concat(file.empty() ? "it was saved by the datasets library" : concat("found ", file),
                  "; convert it with\n  python3 tools/convert_dataset.py ", path, " FOLDER\nand give data.path=FOLDER");
  if (fs::path(path).filename() == "metadata.jsonl")
    return "it is an ImageFolder's metadata; data.path is the folder that it lies in";
  for (fs::directory_iterator item(fs::path(path) / "annotations", ignored), end; !ignored && item != end;
       item.increment(ignored))
    if (item->path().filename().string().starts_with("captions_"))
      return concat("COCO's captions are single files: give data.path=", item->path().string());
  if (has_pictures_alone(path)) return kPicturesAlone;
  if (path.ends_with(".gz") || path.ends_with(".tgz"))
    return "it is compressed; of such files .json.gz, .jsonl.gz, .csv.gz and .tsv.gz can be read: decompress others";
  return "found none of these there";
}

/// Returns the code unit for an escape \uXXXX at text[at], or -1 if there is none.
int escaped_unit(const std::string& text, size_t at) {
  if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') return -1;
  int unit = 0;
  const char* const digits = text.data() + at + 2;
  const auto [end, error] = std::from_chars(digits, digits + 4, unit, 16);
  return end == digits + 4 && error == std::errc() && unit >= 0 ? unit : -1;
}

std::string replace_lone_surrogates(std::string text) {
  for (size_t at = text.find('\\'); at != std::string::npos; at = text.find('\\', at)) {
    const int unit = escaped_unit(text, at);
    const bool high = unit >= 0xd800 && unit < 0xdc00, low = unit >= 0xdc00 && unit < 0xe000;
    const int next = high ? escaped_unit(text, at + 6) : -1;
    const bool pair = high && next >= 0xdc00 && next < 0xe000;
    if ((high && !pair) || low) text.replace(at, 6, "\\ufffd");
    at += pair ? 12 : unit >= 0 ? 6 : 2;        // any other escape is a backslash and one character
  }
  return text;
}

bool is_image_folder(const std::string& path, const TextSettings& settings) { return !find_metadata(path, settings).empty(); }
bool is_webdataset(const std::string& path, const TextSettings&) { return !find_shards(path).empty(); }
bool has_caption_files(const std::string& path, const TextSettings&) { return has_text_captions(path); }

bool is_json_data(const std::string& path, const TextSettings&) {
  const bool metadata = fs::path(path).filename() == "metadata.jsonl";  // metadata of the ImageFolder that contains it
  return !metadata && !is_saved_by_datasets(path) && !find_json_files(path).empty();
}

// Opens records of texts. If the records may be a table of pictures, an error message explains how to use it.
std::unique_ptr<Dataset> open_records(const std::string& path, const TextSettings& settings) {
  try {
    return open_json(path, settings);
  } catch (const UserError& error) {
    throw UserError(error.what() + picture_table_advice(path, settings));
  }
}

struct Format {
  DatasetFormat format;
  bool (*is_there)(const std::string& path, const TextSettings& settings);
  std::unique_ptr<Dataset> (*open)(const std::string& path, const TextSettings& settings);
};

/// DatasetFormat::automatic uses the first format that is found.
const Format kFormats[] = {
    {DatasetFormat::imagefolder, is_image_folder, open_image_folder},
    {DatasetFormat::webdataset, is_webdataset, open_webdataset},
    {DatasetFormat::json, is_json_data, open_records},
    {DatasetFormat::csv, is_json_data, open_records},
    {DatasetFormat::imagefolder, has_caption_files, open_image_folder}};

}  // namespace

template <class Json>
Json parse_json(const std::string& text, const std::string& location) {
  return io::parse_json<Json>(replace_lone_surrogates(text), location);
}
template nlohmann::json parse_json(const std::string&, const std::string&);
template nlohmann::ordered_json parse_json(const std::string&, const std::string&);

std::vector<std::string> captions_from_json(const nlohmann::json& object, const TextSettings& settings, const std::string& location) {
  BLIPFT_USER_CHECK(object.is_object(), location, ": found a JSON ", object.type_name(),
                    ", expected an object with \"text\"");
  const bool renamed = settings.keys.contains("text");
  const std::string& text = name_of(settings, "text");
  for (const std::string& key : renamed ? std::vector{text} : std::vector<std::string>{"text", "caption"}) {
    const auto found = object.find(key);
    if (found == object.end()) continue;
    const bool list = found->is_array() && !found->empty();
    const nlohmann::json& first = list ? found->front() : *found;
    BLIPFT_USER_CHECK(first.is_string(), location, ": key \"", key, "\" is ", io::brief(*found),
                      ", expected a string or a list of strings");
    std::vector<std::string> captions = {first.get<std::string>()};
    for (size_t i = 1; list && i < found->size(); ++i)
      if ((*found)[i].is_string()) captions.push_back((*found)[i].get<std::string>());
    return captions;
  }
  if (settings.for_prompts) return {};
  std::string keys;
  for (const auto& item : object.items()) keys += (keys.empty() ? "\"" : ", \"") + item.key() + "\"";
  throw UserError(concat(location, ": no key \"", text, "\"", renamed ? "" : " (or \"caption\")", "; found ",
                         keys.empty() ? "no keys" : brief(keys, 200),
                         "; where another key has it, say which: data.keys={text: KEY} (in quotes on a command line)"));
}

std::vector<int64_t> spread_samples(int64_t size, int64_t maximum) {
  std::vector<int64_t> samples(static_cast<size_t>(std::min(size, maximum)));
  for (size_t i = 0; i < samples.size(); ++i)
    samples[i] = static_cast<int64_t>(i) * size / static_cast<int64_t>(samples.size());
  return samples;
}

bool dataset_exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) || !find_shards(path).empty();
}

std::unique_ptr<Dataset> open_dataset(const std::string& path, DatasetFormat format,
                                      const TextSettings& settings) {
  const bool automatic = format == DatasetFormat::automatic;
  for (const Format& row : kFormats)
    if (format == row.format || (automatic && row.is_there(path, settings))) return row.open(path, settings);
  if (automatic && settings.for_prompts)
    if (std::unique_ptr<Dataset> pictures = open_pictures_alone(path, settings)) return pictures;
  throw UserError(concat("no dataset at ", path, ": expected an ImageFolder (metadata.jsonl or metadata.csv, there or",
                         " in train/, or a table with names of pictures, or a .txt beside each picture, or COCO's captions_*.json, or VQA's or LAVIS's annotations), a WebDataset (a .tar ",
                         "file, or a directory of them) or records (a .json, .jsonl, .csv or .tsv file, .gz too, or a directory of them)",
                         "; ", hint(path)));
}

int64_t usual_text_tokens(const std::string& path, DatasetFormat format, const TextSettings& settings, int64_t otherwise) {
  for (const Format& row : kFormats)
    if (format == row.format || (format == DatasetFormat::automatic && row.is_there(path, settings)))
      return row.open == open_records || settings.pictures_in_texts ? 512 : otherwise;
  return otherwise;
}

}  // namespace blipft
