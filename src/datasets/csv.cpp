// Reading CSV; see csv.h.
#include "datasets/csv.h"

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
    if (at_ < text_.size() && text_[at_] == separator_) {
      ++at_;
      if (at_ < text_.size()) continue;
      fields.emplace_back();  // the file ends after a separator
      return true;
    }
    end_line();
    return true;
  }
}

std::string CsvReader::plain() {
  const size_t end = std::min(text_.find_first_of(std::string{separator_, '\r', '\n'}, at_), text_.size());
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
        BLIPFT_USER_CHECK(at_ >= text_.size() || text_[at_] == separator_ || std::strchr("\r\n", text_[at_]), file_, ":", line_, ": found '",
                          brief(text_.substr(at_, 1)),
                          "' after a closing quote, expected a separator or the end of the line");
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

char csv_separator(std::string_view text) {
  int64_t commas = 0, semicolons = 0, tabs = 0;
  bool quoted = false;
  const size_t begin = std::min(text.find_first_not_of("\r\n"), text.size());
  for (const char c : text.substr(begin)) {
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == '\n' || c == '\r') break;
    commas += c == ',';
    semicolons += c == ';';
    tabs += c == '\t';
  }
  if (tabs > commas && tabs >= semicolons) return '\t';
  return semicolons > commas ? ';' : ',';
}

std::vector<std::string> csv_columns(const std::string& file, std::vector<std::string> header) {
  std::set<std::string> seen;
  for (const std::string& name : header)
    BLIPFT_USER_CHECK(seen.insert(name).second, file, ":1: found two columns \"", brief(name),
                      "\" in the header, expected each name once; rename one");
  return header;
}

void check_csv_fields(const std::string& location, size_t found, size_t expected) {
  BLIPFT_USER_CHECK(found == expected, location, ": found ", found, " fields, expected ", expected,
                    " as in the header; quote fields that contain the separator");
}

}  // namespace blipft
