// Which pictures an ImageFolder has, and their captions: metadata.jsonl, metadata.csv, COCO's captions, VQA's or
// LAVIS's annotations, or a .txt beside each picture.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blipft/text.h"
#include "datasets/picture_text.h"

namespace blipft {

struct PictureEntry {
  std::string file;        ///< the picture, as the metadata says: relative to PictureList::root
  PictureText text;
  int64_t line = 0;        ///< of the metadata file, from 1
  bool text_beside = false;  ///< the caption is in a .txt beside the picture, which is read with it
};

struct PictureList {
  std::string metadata;    ///< the file, for messages; the folder where captions lie beside the pictures
  std::string root;        ///< the folder that pictures are relative to
  std::vector<PictureEntry> entries;
  std::optional<int64_t> others = {};  ///< of pictures alone: the files there that are none
};

/// What is at `path`, by settings.keys and settings.pictures. Throws UserError naming file and line.
PictureList read_picture_list(const std::string& path, const TextSettings& settings);

/// The pictures in a folder, and in folders inside of it, where they have no text; without entries: there are none, or they
/// have some.
PictureList list_pictures_alone(const std::string& folder);

/// The .txt of a picture.
std::string caption_file_of(const std::string& picture);

}  // namespace blipft
