// Tables of pictures and their texts, with any names of the file and its columns.
#pragma once

#include <optional>
#include <string>

#include "blipft/text.h"

namespace blipft {

/// A .csv, .tsv or .jsonl file (.gz too) with a column of picture names.
struct PictureTable {
  std::string file;
  std::string column;        ///< column with the picture names
  std::string picture;       ///< picture name in the first record
  std::string root;          ///< folder that contains the first picture; empty: it was not found
  TextSettings settings;     ///< settings whose `keys` contain the names of the table's columns
};

/// Returns the table at `path`: this file, or the only record file in this folder. The first record decides which
/// column has the picture names: the column file_name, or the name that settings.keys has for it, or else the first
/// column whose value ends like a picture's name. Records with all keys of a text for language models (`instruction`
/// and `output`, ...) are not such a table.
std::optional<PictureTable> find_picture_table(const std::string& path, const TextSettings& settings);

/// Returns advice for appending to a message if there is such a table but it cannot be used, or "" if there is none.
std::string picture_table_advice(const std::string& path, const TextSettings& settings);

}  // namespace blipft
