// Functions shared by the dataset formats: how a format is recognized and opened, and how captions are read from JSON.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "blipft/datasets.h"

namespace blipft {

/// Returns the metadata file of the ImageFolder at `path`: metadata.jsonl or metadata.csv, in `path` or in train/; or
/// `path` itself if it is a JSON file of COCO's captions or of VQA's or LAVIS's annotations; or a table of pictures at
/// `path` (picture_table.h) whose first picture exists. Empty: there is none.
std::string find_metadata(const std::string& path, const TextSettings& settings = {});
/// Returns true if `path` is a folder with a picture and a .txt file of the same name.
bool has_text_captions(const std::string& path);
/// Returns true if `path` is a folder with pictures (also in subfolders) and without any text. With
/// settings.for_prompts such a folder is an ImageFolder too.
bool has_pictures_alone(const std::string& path);
/// Message for a user who wants to train on such a folder.
constexpr const char* kPicturesAlone =
    "found pictures without captions; to learn from them write a metadata.jsonl with a line for each, {\"file_name\": "
    "\"dog.jpg\", \"text\": \"a dog\"}, or a .txt beside each; ./blipft --generate captions them as they are";
std::unique_ptr<Dataset> open_image_folder(const std::string& path, const TextSettings& settings);
/// Opens a folder that contains only pictures. Returns null if `path` is not such a folder.
std::unique_ptr<Dataset> open_pictures_alone(const std::string& path, const TextSettings& settings);

/// Returns the .tar files that `path` refers to, sorted: a file, a directory, or a pattern with * ? [ ] { }. Empty:
/// none.
std::vector<std::string> find_shards(const std::string& path);
std::unique_ptr<Dataset> open_webdataset(const std::string& path, const TextSettings& settings);

/// Returns the record files that `path` refers to, sorted: a .json, .jsonl, .csv or .tsv file (.gz too), or a directory
/// of such files. Empty: none.
std::vector<std::string> find_json_files(const std::string& path);
std::unique_ptr<Dataset> open_json(const std::string& path, const TextSettings& settings);

/// Returns at most `maximum` of `size` sample numbers, evenly spread. They represent the whole data set where examining
/// every file takes too long.
std::vector<int64_t> spread_samples(int64_t size, int64_t maximum);
constexpr int64_t max_sizes_looked_at = 1024, max_pictures_looked_into = 64;
constexpr int64_t max_bytes_looked_at = int64_t{1} << 20;  // of each of these pictures

/// `text` as JSON, with U+FFFD for each surrogate escape that is no half of a pair: Python's json keeps those, but they
/// stand for no text. Throws UserError naming `location` (file and line) where it is not JSON.
template <class Json = nlohmann::json>
Json parse_json(const std::string& text, const std::string& location);

/// Returns the captions in a JSON object: the value of the key that settings.keys has for text, else of "text", else of
/// "caption". If the value is a list, its first text is the training target, and the other texts are further
/// references. `location` (file and line) is used in messages. Throws UserError if there is no caption, unless
/// settings.for_prompts is set.
std::vector<std::string> captions_from_json(const nlohmann::json& object, const TextSettings& settings, const std::string& location);

}  // namespace blipft
