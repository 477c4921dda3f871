// The list of an ImageFolder's pictures and captions, from metadata.jsonl, metadata.csv, COCO's captions, VQA's or
// LAVIS's annotations, or a .txt file next to each picture.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blipft/text.h"
#include "datasets/picture_text.h"

namespace blipft {

struct PictureEntry {
  std::string file;        ///< path of the picture as in the metadata, relative to PictureList::root
  PictureText text;
  int64_t line = 0;        ///< line of the metadata file, from 1
  /// True if the caption is in a .txt file next to the picture. It is read together with the picture.
  bool text_next_to = false;
};

struct PictureList {
  std::string metadata;    ///< file name for messages; the folder if captions are next to the pictures
  std::string root;        ///< folder that picture paths are relative to
  std::vector<PictureEntry> entries;
  std::string unread_keys = {};  ///< keys of the records that nothing reads, as UnreadKeys::text()
  std::optional<int64_t> others = {};  ///< for a folder with only pictures: number of its other files
};

/// Reads the picture list at `path` by settings.keys and settings.pictures. Throws UserError naming file and line.
PictureList read_picture_list(const std::string& path, const TextSettings& settings);

/// Lists the pictures in a folder and its subfolders if they have no text. The list has no entries if there are no
/// pictures or if there is any text.
PictureList list_pictures_alone(const std::string& folder);

/// Returns the name of the .txt file that belongs to a picture.
std::string caption_file_of(const std::string& picture);

}  // namespace blipft
