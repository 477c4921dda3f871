// open_dataset: looks at a path and opens what is there.
#include <charconv>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "blipft/error.h"
#include "data/datasets.h"

namespace blipft {
namespace {

namespace fs = std::filesystem;

/// What a path that is no dataset looks like, with advice.
std::string hint(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return "it does not exist; check data.path";
  if (fs::exists(fs::path(path) / "state.json", ignored) || fs::exists(fs::path(path) / "dataset_dict.json", ignored))
    return "it was saved by the datasets library; convert it with tools/convert_dataset.py";
  if (path.ends_with(".gz") || path.ends_with(".tgz"))
    return "it is compressed; decompress it, samples are read at random";
  return "found none of these there";
}

/// The code unit that the escape \uXXXX at text[at] stands for; -1: there is none.
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
    at += pair ? 12 : unit >= 0 ? 6 : 2;        // other escapes are a backslash and one character
  }
  return text;
}

}  // namespace

nlohmann::json parse_json(const std::string& text, const std::string& place) {
  try {
    return nlohmann::json::parse(replace_lone_surrogates(text));
  } catch (const nlohmann::json::exception& error) {
    throw UserError(concat(place, ": not valid JSON: ", error.what()));
  }
}

std::string caption_from_json(const nlohmann::json& object, const std::string& place) {
  BLIPFT_USER_CHECK(object.is_object(), place, ": found a JSON ", object.type_name(),
                    ", expected an object with \"text\"");
  for (const char* key : {"text", "caption"}) {
    const auto found = object.find(key);
    if (found == object.end()) continue;
    const nlohmann::json* value = &*found;
    if (value->is_array() && !value->empty()) value = &value->front();
    BLIPFT_USER_CHECK(value->is_string(), place, ": key \"", key, "\" is ", found->dump(),
                      ", expected a string or a list of strings");
    return value->get<std::string>();
  }
  std::string keys;
  for (const auto& item : object.items()) keys += (keys.empty() ? "\"" : ", \"") + item.key() + "\"";
  throw UserError(concat(place, ": no key \"text\" (or \"caption\"); found ", keys.empty() ? "no keys" : keys));
}

std::unique_ptr<Dataset> open_dataset(const std::string& path, const std::string& format) {
  if (format == "imagefolder") return open_image_folder(path);
  if (format == "webdataset") return open_webdataset(path);
  BLIPFT_USER_CHECK(format == "auto", "data.format is \"", format, "\", expected auto, imagefolder or webdataset");
  if (!find_metadata(path).empty()) return open_image_folder(path);
  if (!find_shards(path).empty()) return open_webdataset(path);
  throw UserError(concat("no dataset at ", path, ": expected an ImageFolder (metadata.jsonl or metadata.csv, there or",
                         " in train/) or a WebDataset (a .tar file, or a directory of them); ", hint(path)));
}

}  // namespace blipft
