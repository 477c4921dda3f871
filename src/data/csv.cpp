// Reading CSV; see csv.h.
#include "data/csv.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "blipft/error.h"

namespace blipft {

bool CsvReader::next(std::vector<std::string>& fields) {
  if (at_ >= text_.size()) return false;
  fields.clear();
  record_line_ = line_;
  for (;;) {
    fields.push_back(text_[at_] == '"' ? quoted() : plain());
    if (at_ < text_.size() && text_[at_] == ',') {
      ++at_;
      if (at_ < text_.size()) continue;
      fields.emplace_back();  // the file ends after a comma
      return true;
    }
    end_line();
    return true;
  }
}

std::string CsvReader::plain() {
  const size_t end = std::min(text_.find_first_of(",\r\n", at_), text_.size());
  std::string field = text_.substr(at_, end - at_);
  at_ = end;
  return field;
}

std::string CsvReader::quoted() {
  std::string field;
  for (++at_; at_ < text_.size(); ++at_) {
    if (text_[at_] == '"') {
      ++at_;
      if (at_ >= text_.size() || text_[at_] != '"') {
        BLIPFT_USER_CHECK(at_ >= text_.size() || std::strchr(",\r\n", text_[at_]), file_, ":", line_, ": found '",
                          brief(text_.substr(at_, 1)),
                          "' after a closing quote, expected a comma or the end of the line");
        return field;
      }
    }
    if (text_[at_] == '\n') ++line_;
    field += text_[at_];
  }
  throw UserError(concat(file_, ":", record_line_, ": a quoted field that begins in this record is never closed"));
}

void CsvReader::end_line() {
  if (at_ < text_.size() && text_[at_] == '\r') ++at_;
  if (at_ < text_.size() && text_[at_] == '\n') ++at_;
  ++line_;
}

std::vector<std::string> csv_columns(const std::string& file, std::vector<std::string> header) {
  for (const char* separator : {";", "\t"})
    BLIPFT_USER_CHECK(header.size() > 1 || header.front().find(separator) == std::string::npos, file,
                      ":1: found the header \"", brief(header.front()), "\", whose names are separated by ",
                      *separator == ';' ? "semicolons" : "tabs", ", expected commas; save the table with commas");
  std::set<std::string> seen;
  for (const std::string& name : header)
    BLIPFT_USER_CHECK(seen.insert(name).second, file, ":1: found two columns \"", brief(name),
                      "\" in the header, expected each name once; rename one");
  return header;
}

void check_csv_fields(const std::string& place, size_t found, size_t expected) {
  BLIPFT_USER_CHECK(found == expected, place, ": found ", found, " fields, expected ", expected,
                    " as in the header; quote fields that hold commas");
}

}  // namespace blipft
