// What the dataset formats share: how they are recognised, opened, and how a caption is taken from JSON.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "blipft/datasets.h"

namespace blipft {

/// The metadata file of the ImageFolder at `path`: metadata.jsonl or metadata.csv, there or in train/; or that path itself
/// where it is a JSON file of COCO's captions; or a table of pictures there (picture_table.h) whose first picture exists.
/// Empty: none.
std::string find_metadata(const std::string& path, const TextSettings& settings = {});
/// Whether `path` is a folder with a picture and, by the same name, a .txt.
bool has_text_captions(const std::string& path);
/// Whether `path` is a folder with pictures, or folders of them, and without any text. With settings.for_prompts that is an
/// ImageFolder too.
bool has_pictures_alone(const std::string& path);
/// What to say of such a folder to who wants to learn from it.
constexpr const char* kPicturesAlone =
    "found pictures without captions; to learn from them write a metadata.jsonl with a line for each, {\"file_name\": "
    "\"dog.jpg\", \"text\": \"a dog\"}, or a .txt beside each; ./blipft --generate captions them as they are";
std::unique_ptr<Dataset> open_image_folder(const std::string& path, const TextSettings& settings);
/// The pictures of a folder that has pictures alone; null: it is none.
std::unique_ptr<Dataset> open_pictures_alone(const std::string& path, const TextSettings& settings);

/// The .tar files that `path` means: a file, a directory, or a pattern with * ? [ ] { }; sorted. Empty: none.
std::vector<std::string> find_shards(const std::string& path);
std::unique_ptr<Dataset> open_webdataset(const std::string& path, const TextSettings& settings);

/// The .json, .jsonl and .csv files that `path` means: a file, or a directory of them; sorted. Empty: none.
std::vector<std::string> find_json_files(const std::string& path);
std::unique_ptr<Dataset> open_json(const std::string& path, const TextSettings& settings);

/// Some of `size` samples, at most `most`, evenly spread: whose files stand for all where looking at each takes too long.
std::vector<int64_t> spread_samples(int64_t size, int64_t most);
constexpr int64_t most_sizes_looked_at = 1024, most_pictures_looked_into = 64;
constexpr int64_t most_bytes_looked_at = int64_t{1} << 20;  // of each of these pictures

/// `text` as JSON, with U+FFFD for each surrogate escape that is no half of a pair: Python's json keeps those, but they
/// stand for no text. Throws UserError naming `place` (file and line) where it is not JSON.
nlohmann::json parse_json(const std::string& text, const std::string& place);

/// The captions in a JSON object: under the key that settings.keys has for text, else its "text", else its "caption"; of a
/// list the first is what is learnt, the other texts are right too. `place` (file and line) is for messages. Throws
/// UserError when there is none; with settings.for_prompts there may be none.
std::vector<std::string> captions_from_json(const nlohmann::json& object, const TextSettings& settings, const std::string& place);

}  // namespace blipft
