// open_dataset: looks at a path and opens what is there.
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

}  // namespace

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
