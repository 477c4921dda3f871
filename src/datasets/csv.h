// CSV as defined by RFC 4180: records of fields. A quoted field may contain separators, line ends and doubled quotes.
// The separator is a comma, a semicolon or a tab.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace blipft {

/// Reads the records of a text.
class CsvReader {
 public:
  /// `file` and `line` (the number of the text's first line) are used in messages; both strings must outlive the
  /// reader.
  CsvReader(const std::string& file, const std::string& text, int64_t line = 1, char separator = ',')
      : file_(file), text_(text), line_(line), record_line_(line), separator_(separator) {}

  /// Reads the next record. Returns false at the end. Throws UserError naming file and line.
  bool next(std::vector<std::string>& fields);
  /// Returns the line at which the record of the last next() began.
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

/// Returns the separator of a table: the comma, semicolon or tab that occurs most often, outside of quotes, in the
/// header (the first record of `text`). Returns a comma if there is none or in case of a tie.
char csv_separator(std::string_view text);

/// Returns the column names from the header line of `file`. Throws UserError if two names are equal.
std::vector<std::string> csv_columns(const std::string& file, std::vector<std::string> header);

/// Throws UserError with `location` (file and line) unless a record has as many fields as the header.
void check_csv_fields(const std::string& location, size_t found, size_t expected);

}  // namespace blipft
