// CSV as RFC 4180 has it: records of fields, which may be quoted, then hold separators, line ends and doubled quotes. The
// separator is a comma, a semicolon or a tab.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace blipft {

/// Reads the records of a text.
class CsvReader {
 public:
  /// `file` and `line`, the text's first, are for messages; both texts must outlive the reader.
  CsvReader(const std::string& file, const std::string& text, int64_t line = 1, char separator = ',')
      : file_(file), text_(text), line_(line), record_line_(line), separator_(separator) {}

  /// The next record; false at the end. Throws UserError naming file and line.
  bool next(std::vector<std::string>& fields);
  /// Where the record of the last next() began.
  int64_t line() const { return record_line_; }

 private:
  std::string plain();
  std::string quoted();
  void end_line();

  const std::string& file_;
  const std::string& text_;
  size_t at_ = 0;
  int64_t line_, record_line_;
  char separator_;
};

/// Returns the separator of a table: the one of comma, semicolon and tab that the header, the first record of `text`, has
/// most often outside of quotes; a comma if there is none, or if it is as frequent as another.
char csv_separator(std::string_view text);

/// The names in the header line of `file`. Throws UserError where two are equal.
std::vector<std::string> csv_columns(const std::string& file, std::vector<std::string> header);

/// Throws UserError, with `place` (file and line), unless a record has as many fields as the header.
void check_csv_fields(const std::string& place, size_t found, size_t expected);

}  // namespace blipft
