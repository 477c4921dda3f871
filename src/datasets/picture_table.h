// Tables of pictures and their texts, whatever the file and its columns are called.
#pragma once

#include <optional>
#include <string>

#include "blipft/text.h"

namespace blipft {

/// A .csv, .tsv or .jsonl file (.gz too) in which a column has names of pictures.
struct PictureTable {
  std::string file;
  std::string column;        ///< the column of the names
  std::string picture;       ///< the name in the first record
  std::string root;          ///< folder that the first picture was found in; empty: it does not exist
  TextSettings settings;     ///< with the table's names in `keys`
};

/// The table at `path`: that file, or the only file of records in that folder. The first record decides: it has the column
/// file_name, or what settings.keys has for it, or else one whose value ends as the name of a picture. Records that have
/// all keys of a text for language models (`instruction` and `output`, ...) are none.
std::optional<PictureTable> find_picture_table(const std::string& path, const TextSettings& settings);

/// What to do if there is such a table but it cannot be used, to follow a message; empty: nothing is known.
std::string picture_table_advice(const std::string& path, const TextSettings& settings);

}  // namespace blipft
