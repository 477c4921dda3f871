// Where the records of a JSON file lie.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/file.h"

namespace blipft {

/// A file that is open for reading. Move-only.
class InputFile {
 public:
  /// Throws UserError naming the file.
  explicit InputFile(const std::string& path) : path_(path), file_(io::open_for_reading(path)) {}

  /// Up to `bytes` bytes from `offset`; fewer at the end. Thread-safe.
  size_t read(int64_t offset, char* out, size_t bytes) const;
  /// As it is now: the file may grow or shrink.
  int64_t size() const { return io::file_size(file_, path_); }

 private:
  std::string path_;
  io::FileDescriptor file_;
};

/// A line, or an element of a list.
struct JsonRecord {
  int64_t offset = 0;
  uint32_t bytes = 0;
  uint32_t line = 0;                       ///< where it begins, from 1
};

/// Appends the records of a file: the elements of its list where it begins with "[" and `may_be_list`, else its lines
/// that are not blank. Returns whether it is a list. Records are not parsed. Throws UserError naming file and line where the
/// list is not well-formed, or a record has more than most_text_bytes.
bool index_json_file(const std::string& path, bool may_be_list, std::vector<JsonRecord>& records);

}  // namespace blipft
