// Scans a JSON or CSV file once, block by block.
#include "datasets/json_index.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>

#include "blipft/error.h"
#include "blipft/text.h"
#include "datasets/csv.h"
#include "io/crc32c.h"
#include "io/gzip.h"

namespace blipft {
namespace {

constexpr int64_t block_bytes = int64_t{1} << 22;
constexpr int64_t max_gzip_content_bytes = int64_t{32} << 30;
constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/// State shared by the scanners: the record that is being scanned.
class RecordCollector {
 public:
  RecordCollector(const std::string& path, std::vector<JsonRecord>& records) : path_(path), records_(records) {}
  bool open() const { return begin_ >= 0; }
  void begin(int64_t offset, int64_t line) {
    begin_ = offset;
    line_ = line;
  }
  /// Checks the limits for a record that extends at least to `offset`.
  void check(int64_t offset) const {
    const int64_t bytes = offset - begin_, maximum = std::numeric_limits<uint32_t>::max();
    BLIPFT_USER_CHECK(bytes <= max_text_bytes, path_, ":", line_, ": a record of ", bytes, " bytes or more, expected ",
                      "at most ", max_text_bytes, "; is a line end or a quote missing?");
    BLIPFT_USER_CHECK(line_ <= maximum, path_, ":", line_, ": more lines than ", maximum, "; split the file");
  }
  void end(int64_t offset) {
    const int64_t bytes = offset - begin_;
    check(offset);
    records_.push_back({begin_, static_cast<uint32_t>(bytes), static_cast<uint32_t>(line_)});
    begin_ = -1;
  }

 private:
  const std::string& path_;
  std::vector<JsonRecord>& records_;
  int64_t begin_ = -1, line_ = 1;
};

/// Scans lines; blank lines are skipped.
class LineScanner {
 public:
  LineScanner(const std::string& path, std::vector<JsonRecord>& records) : record_(path, records) {}
  void scan(std::string_view block, int64_t offset) {
    for (size_t at = 0; at < block.size();) {
      const size_t end = std::min(block.find('\n', at), block.size());
      while (!record_.open() && at < end && is_blank(block[at])) ++at;
      if (!record_.open() && at < end) record_.begin(offset + static_cast<int64_t>(at), line_);
      if (end == block.size()) break;
      if (record_.open()) record_.end(offset + static_cast<int64_t>(end));
      ++line_;
      at = end + 1;
    }
    if (record_.open()) record_.check(offset + static_cast<int64_t>(block.size()));
  }
  void finish(int64_t size) {
    if (record_.open()) record_.end(size);
  }

 private:
  RecordCollector record_;
  int64_t line_ = 1;
};

/// Scans the elements of a file that is one JSON list.
class ListScanner {
 public:
  ListScanner(const std::string& path, std::vector<JsonRecord>& records) : path_(path), record_(path, records) {}
  void scan(std::string_view block, int64_t offset) {
    for (size_t at = 0; at < block.size(); ++at) {
      if (in_string_ && !escaped_)         // most of a file is inside strings
        while (at < block.size() && block[at] != '"' && block[at] != '\\' && block[at] != '\n') ++at;
      if (at == block.size()) break;
      const char c = block[at];
      line_ += c == '\n';
      if (in_string_) {
        if (!escaped_ && c == '"') in_string_ = false;
        escaped_ = !escaped_ && c == '\\';
      } else if (!is_blank(c)) {
        step(c, offset + static_cast<int64_t>(at));
      }
    }
    if (record_.open()) record_.check(offset + static_cast<int64_t>(block.size()));
  }
  void finish(int64_t) {
    BLIPFT_USER_CHECK(closed_, path_, ":", line_, ": the file ends inside of the list that it begins with; it is ",
                      "truncated, or a bracket or quote is missing");
  }

 private:
  void step(char c, int64_t offset) {
    if (closed_) fail(c, "nothing behind the list");
    if (depth_ == 0) {                     // the first "["
      depth_ = 1;
      return;
    }
    const bool closes = c == ']' || c == '}';
    if (depth_ == 1 && (c == ',' || closes)) {
      if (c == '}') fail(c, "a comma or \"]\"");
      if (!record_.open() && !(c == ']' && !after_comma_)) fail(c, "an object");
      if (record_.open()) record_.end(offset);
      after_comma_ = c == ',';
      closed_ = c == ']';
      return;
    }
    if (!record_.open()) record_.begin(offset, line_);
    if (c == '"') in_string_ = true;
    if (c == '[' || c == '{') ++depth_;
    if (closes) --depth_;
  }
  [[noreturn]] void fail(char c, const char* expected) const {
    throw UserError(concat(path_, ":", line_, ": not valid JSON: found '", brief({&c, 1}), "', expected ", expected));
  }

  const std::string& path_;
  RecordCollector record_;
  int64_t line_ = 1, depth_ = 0;
  bool in_string_ = false, escaped_ = false, after_comma_ = false, closed_ = false;
};

/// Scans the records of CSV. A line end inside quotes does not end a record.
class CsvScanner {
 public:
  CsvScanner(const std::string& path, std::vector<JsonRecord>& records, char separator)
      : record_(path, records), separator_(separator) {}
  void scan(std::string_view block, int64_t offset) {
    for (size_t at = 0; at < block.size(); ++at) {
      const char c = block[at];
      const bool line_end = c == '\n' || c == '\r';
      if (c == '\n' ? last_ != '\r' || quoted_ : c == '\r' && !quoted_) ++next_line_;
      if (!record_.open() && !line_end) record_.begin(offset + static_cast<int64_t>(at), line_);
      if (quoted_) {
        if (c == '"') quoted_ = false, closed_ = true;
      } else if (c == '"' && (field_begins_ || closed_)) {  // after a closing quote: a doubled quote
        quoted_ = true;
      } else if (line_end && record_.open()) {
        record_.end(offset + static_cast<int64_t>(at));
      }
      if (c != '"') closed_ = false;
      field_begins_ = !quoted_ && (c == separator_ || line_end);
      last_ = c;
      if (!record_.open()) line_ = next_line_;
    }
    if (record_.open()) record_.check(offset + static_cast<int64_t>(block.size()));
  }
  void finish(int64_t size) {
    if (record_.open()) record_.end(size);
  }

 private:
  RecordCollector record_;
  int64_t line_ = 1, next_line_ = 1;
  char separator_;
  bool quoted_ = false, closed_ = false, field_begins_ = true;
  char last_ = 0;
};

/// Scans the lists of objects in the object that a file begins with.
class ObjectScanner {
 public:
  ObjectScanner(const std::string& path, const std::function<bool(std::string_view)>& takes_key)
      : path_(path), takes_key_(takes_key) {}
  /// Returns false if the file is not such an object.
  bool scan(std::string_view block, int64_t offset) {
    for (size_t at = 0; at < block.size(); ++at) {
      if (in_string_ && !escaped_ && !in_key_)  // most of a file is inside strings
        while (at < block.size() && block[at] != '"' && block[at] != '\\' && block[at] != '\n') ++at;
      if (at == block.size()) break;
      const char c = block[at];
      line_ += c == '\n';
      if (in_string_) {
        const bool ends = !escaped_ && c == '"';
        if (in_key_ && !ends && key_.size() < max_key_bytes) key_ += c;
        in_string_ = !ends;
        escaped_ = !escaped_ && c == '\\';
      } else if (!is_blank(c) && !step(c, offset + static_cast<int64_t>(at))) {
        return false;
      }
    }
    if (record_ && record_->open()) record_->check(offset + static_cast<int64_t>(block.size()));
    return true;
  }
  std::optional<std::vector<JsonList>> finish() {
    BLIPFT_USER_CHECK(closed_ || lists_.empty(), path_, ":", line_, ": the file ends inside of the object that it begins ",
                      "with; it is truncated, or a bracket or quote is missing");
    if (!closed_) return std::nullopt;
    return std::move(lists_);
  }

 private:
  static constexpr size_t max_key_bytes = 256;

  bool step(char c, int64_t offset) {
    if (closed_) return false;             // the file has one object per line
    if (depth_ == 0) {                     // the first "{"
      depth_ = 1;
      key_is_next_ = true;
      return true;
    }
    if (depth_ == 1) return step_in_object(c);
    if (in_list_ && depth_ == 2 && (c == ',' || c == ']')) {
      if (record_ && record_->open()) record_->end(offset);
      if (c == ']') leave_list();
      return true;
    }
    if (in_list_ && depth_ == 2 && c != '{') drop_list();
    if (in_list_ && depth_ == 2) begin_record(offset);
    if (c == '"') in_string_ = true;
    if (c == '[' || c == '{') ++depth_;
    if (c == ']' || c == '}') --depth_;
    return true;
  }
  bool step_in_object(char c) {
    if (c == '"') {
      in_string_ = true;
      in_key_ = key_is_next_;
      if (in_key_) key_.clear();
      key_is_next_ = false;
    } else if (c == ':') {
      in_key_ = false;
      if (takes_key_ && !takes_key_(key_)) return false;
    } else if (c == ',') {
      key_is_next_ = true;
    } else if (c == '[' || c == '{') {
      depth_ = 2;
      in_list_ = c == '[';
    } else if (c == '}') {
      depth_ = 0;
      closed_ = true;
    } else if (c == ']') {
      return false;
    }
    return true;
  }
  void begin_record(int64_t offset) {
    if (!record_) {
      lists_.push_back({key_, {}});
      record_.emplace(path_, lists_.back().records);
    }
    if (!record_->open()) record_->begin(offset, line_);
  }
  /// Discards the list because it contains something other than objects.
  void drop_list() {
    if (record_) lists_.pop_back();
    record_.reset();
    in_list_ = false;
  }
  void leave_list() {
    record_.reset();
    in_list_ = false;
    depth_ = 1;
  }

  const std::string& path_;
  const std::function<bool(std::string_view)>& takes_key_;
  std::vector<JsonList> lists_;
  std::optional<RecordCollector> record_;  // for the open list, from its first object on
  std::string key_;                        // last key of the object, with its escapes
  int64_t line_ = 1, depth_ = 0;
  bool in_string_ = false, escaped_ = false, in_key_ = false, key_is_next_ = false, in_list_ = false, closed_ = false;
};

/// Returns a buffer for a block. It is not larger than the file, because a folder may have many small files.
std::string block_for(const InputFile& file) {
  return std::string(static_cast<size_t>(std::clamp(file.size(), int64_t{1}, block_bytes)), '\0');
}

template <class Scanner>
uint32_t scan_file(const InputFile& file, int64_t offset, Scanner scanner) {
  uint32_t checksum = 0;
  std::string block = block_for(file);
  for (;;) {
    const size_t count = file.read(offset, block.data(), block.size());
    if (count == 0) break;
    checksum = io::crc32c(block.data(), static_cast<int64_t>(count), checksum);
    scanner.scan(std::string_view(block).substr(0, count), offset);
    offset += static_cast<int64_t>(count);
  }
  scanner.finish(offset);
  return checksum;
}

/// Returns the offset of a file's text, after a byte order mark.
int64_t text_begin(const InputFile& file) {
  char mark[3];
  return file.read(0, mark, sizeof mark) == 3 && std::string_view(mark, 3) == byte_order_mark ? 3 : 0;
}

/// Returns the first character that is not blank, or 0 if the first block contains none.
char first_character(const InputFile& file, int64_t offset) {
  std::string block = block_for(file);
  block.resize(file.read(offset, block.data(), block.size()));
  for (const char c : block)
    if (!is_blank(c)) return c;
  return 0;
}

}  // namespace

std::string record_suffix(const std::string& path) {
  const std::filesystem::path name = path;
  return (io::is_gzip_name(path) ? name.stem() : name).extension().string();
}

InputFile::InputFile(const std::string& path) : path_(path) {
  if (io::is_gzip_name(path)) content_ = io::read_gzip(path, max_gzip_content_bytes);
  else file_ = io::open_for_reading(path);
}

size_t InputFile::read(int64_t offset, char* out, size_t bytes) const {
  size_t done = 0;
  if (content_) return content_->copy(out, bytes, std::min(static_cast<size_t>(offset), content_->size()));
  while (done < bytes) {
    const ssize_t count = ::pread(file_.get(), out + done, bytes - done, offset + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    BLIPFT_USER_CHECK(count >= 0, path_, ": cannot be read (", std::strerror(errno), ")");
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

std::optional<std::vector<JsonList>> lists_in_object(const InputFile& file,
                                                     const std::function<bool(std::string_view)>& takes_key,
                                                     uint32_t* checksum) {
  int64_t offset = text_begin(file);
  if (first_character(file, offset) != '{') return std::nullopt;
  ObjectScanner scanner(file.path(), takes_key);
  std::string block = block_for(file);
  for (;;) {
    const size_t count = file.read(offset, block.data(), block.size());
    if (count == 0) return scanner.finish();
    if (checksum) *checksum = io::crc32c(block.data(), static_cast<int64_t>(count), *checksum);
    if (!scanner.scan(std::string_view(block).substr(0, count), offset)) return std::nullopt;
    offset += static_cast<int64_t>(count);
  }
}

namespace {

/// Returns true if the file is an object with a list of records. Appends these records.
bool index_list_in_object(const InputFile& file, const ListChoice& choice, std::vector<JsonRecord>& records,
                          uint32_t& checksum) {
  const std::string& path = file.path();
  std::optional<std::vector<JsonList>> lists = lists_in_object(file, nullptr, &checksum);
  if (!lists) return false;
  std::erase_if(*lists, [&](const JsonList& list) {
    return choice.others.contains(list.name) || (!choice.name.empty() && list.name != choice.name);
  });
  if (lists->empty()) {
    BLIPFT_USER_CHECK(choice.name.empty(), path, ": has no list of objects under the key \"", brief(choice.name),
                      "\", which data.keys names for records; correct the name there");
    return false;
  }
  std::string names;
  for (const JsonList& list : *lists) names += concat(names.empty() ? "\"" : ", \"", brief(list.name), "\"");
  BLIPFT_USER_CHECK(lists->size() == 1, path, ": holds ", lists->size(), " lists of objects, under ", brief(names, 200),
                    ", expected the records under one key; say which with data.keys={records: ",
                    brief(lists->front().name), "} (in quotes on a command line)");
  records.insert(records.end(), lists->front().records.begin(), lists->front().records.end());
  return true;
}

}  // namespace

RecordForm index_records(const InputFile& file, const ListChoice& choice, std::vector<JsonRecord>& records,
                         uint32_t& checksum) {
  const std::string& path = file.path();
  const int64_t begin = text_begin(file);
  const std::string suffix = record_suffix(path);
  if (suffix == ".csv" || suffix == ".tsv") {
    std::string block = block_for(file);
    block.resize(file.read(begin, block.data(), block.size()));
    checksum = scan_file(file, begin, CsvScanner(path, records, csv_separator(block)));
    return RecordForm::csv;
  }
  const char first = suffix == ".json" ? first_character(file, begin) : char{0};
  checksum = 0;
  if (first == '{' && index_list_in_object(file, choice, records, checksum)) return RecordForm::list;
  if (first == '[') checksum = scan_file(file, begin, ListScanner(path, records));
  else checksum = scan_file(file, begin, LineScanner(path, records));
  return first == '[' ? RecordForm::list : RecordForm::lines;
}

}  // namespace blipft
