// Where the records of a JSON or CSV file lie.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"

namespace blipft {

/// The suffix of a file's name; of a compressed file the one before ".gz": ".csv" of "a.csv.gz".
std::string record_suffix(const std::string& path);

/// A file that is open for reading. A .gz file is decompressed into memory when it is opened. Move-only.
class InputFile {
 public:
  /// Throws UserError naming the file.
  explicit InputFile(const std::string& path);
  const std::string& path() const { return path_; }

  /// Up to `bytes` bytes from `offset`; fewer at the end. Thread-safe.
  size_t read(int64_t offset, char* out, size_t bytes) const;
  /// As it is now: the file may grow or shrink.
  int64_t size() const { return content_ ? static_cast<int64_t>(content_->size()) : io::file_size(file_, path_); }

 private:
  std::string path_;
  io::FileDescriptor file_;
  std::optional<std::string> content_;     // of a .gz file, uncompressed
};

/// A line, or an element of a list, or a record of CSV.
struct JsonRecord {
  int64_t offset = 0;
  uint32_t bytes = 0;
  uint32_t line = 0;                       ///< where it begins, from 1
};

/// What the records of a file are: JSON in each line, the elements of a list, or CSV, the header first.
enum class RecordForm { lines, list, csv };

/// A list of objects that stands under a key of the object that a file is.
struct JsonList {
  std::string name;
  std::vector<JsonRecord> records;
};
/// These lists, which hold at least one object; nullopt: the file is not one object, or has a key that `takes_key`
/// refuses (null: it has none). `checksum`, optional, is 0 and becomes the CRC-32C of the text. Throws UserError naming the file where it ends inside of one of them.
std::optional<std::vector<JsonList>> lists_in_object(const InputFile& file,
                                                     const std::function<bool(std::string_view)>& takes_key = nullptr,
                                                     uint32_t* checksum = nullptr);

/// Which list of a file that is an object holds the records.
struct ListChoice {
  std::string name;                        ///< empty: the only one there is
  std::set<std::string> others;            ///< keys of a record: these lists are none
};
/// Appends the records of a file: of .csv the lines with their header, of .json the elements of its list where it begins
/// with "[" or is an object with such a list, else its lines that are not blank. `checksum` becomes the CRC-32C of its text. Records are not parsed. Throws UserError
/// naming file and line where the list is not well-formed, or a record has more than most_text_bytes, or where it is not
/// clear which list is meant.
RecordForm index_records(const InputFile& file, const ListChoice& choice, std::vector<JsonRecord>& records,
                         uint32_t& checksum);

}  // namespace blipft
