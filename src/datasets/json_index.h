// The offsets of the records in a JSON or CSV file.
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

/// Returns the suffix of a file name, ignoring a final ".gz": ".csv" for "a.csv.gz".
std::string record_suffix(const std::string& path);

/// A file that is open for reading. A .gz file is decompressed into memory when it is opened. Move-only.
class InputFile {
 public:
  /// Throws UserError naming the file.
  explicit InputFile(const std::string& path);
  const std::string& path() const { return path_; }

  /// Reads up to `bytes` bytes from `offset`; fewer at the end of the file. Thread-safe.
  size_t read(int64_t offset, char* out, size_t bytes) const;
  /// Returns the current size: an uncompressed file may grow or shrink.
  int64_t size() const { return content_ ? static_cast<int64_t>(content_->size()) : io::file_size(file_, path_); }

 private:
  std::string path_;
  io::FileDescriptor file_;
  std::optional<std::string> content_;     // decompressed content of a .gz file
};

/// A line, an element of a list, or a record of CSV.
struct JsonRecord {
  int64_t offset = 0;
  uint32_t bytes = 0;
  uint32_t line = 0;                       ///< first line of the record, from 1
};

/// The form of the records in a file: JSON in each line, elements of a list, or CSV with a header.
enum class RecordForm { lines, list, csv };

/// A list of objects under a key of the top-level object of a file.
struct JsonList {
  std::string name;
  std::vector<JsonRecord> records;
};
/// Returns the lists that contain at least one object. Returns nullopt if the file is not one object, or has a key that
/// `takes_key` refuses (null refuses none). `checksum`, if given, must be 0 and becomes the CRC-32C of the text. Throws
/// UserError naming the file if the file ends inside the object.
std::optional<std::vector<JsonList>> lists_in_object(const InputFile& file,
                                                     const std::function<bool(std::string_view)>& takes_key = nullptr,
                                                     uint32_t* checksum = nullptr);

/// Selects the list that contains the records, in a file that is an object.
struct ListChoice {
  std::string name;                        ///< name of the list; empty: the only list of the file
  std::set<std::string> others;            ///< keys of lists that are part of a record, and therefore ignored
};
/// Appends the records of a file, without parsing them. The records of .csv are the lines, header included. The records
/// of .json are the elements of its list if the file begins with "[" or is an object with such a list; otherwise they
/// are the lines that are not blank. `checksum` becomes the CRC-32C of the text. Throws UserError naming file and line
/// if the list is not well-formed, if a record has more than max_text_bytes, or if it is ambiguous which list contains
/// the records.
RecordForm index_records(const InputFile& file, const ListChoice& choice, std::vector<JsonRecord>& records,
                         uint32_t& checksum);

}  // namespace blipft
