// One pass over a JSON file, a block at a time.
#include "data/json_index.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

#include "blipft/data.h"
#include "blipft/error.h"

namespace blipft {
namespace {

constexpr int64_t block_bytes = int64_t{1} << 22;
constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/// What both forms share: the record that is being passed over.
class RecordCollector {
 public:
  RecordCollector(const std::string& path, std::vector<JsonRecord>& records) : path_(path), records_(records) {}
  bool open() const { return begin_ >= 0; }
  void begin(int64_t offset, int64_t line) {
    begin_ = offset;
    line_ = line;
  }
  /// The record goes on, at least to `offset`.
  void check(int64_t offset) const {
    const int64_t bytes = offset - begin_, most = std::numeric_limits<uint32_t>::max();
    BLIPFT_USER_CHECK(bytes <= most_text_bytes, path_, ":", line_, ": a record of ", bytes, " bytes or more, expected ",
                      "at most ", most_text_bytes, "; is a line end or a quote missing?");
    BLIPFT_USER_CHECK(line_ <= most, path_, ":", line_, ": more lines than ", most, "; split the file");
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

/// Lines that are not blank.
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

/// Elements of the list that a file is.
class ListScanner {
 public:
  ListScanner(const std::string& path, std::vector<JsonRecord>& records) : path_(path), record_(path, records) {}
  void scan(std::string_view block, int64_t offset) {
    for (size_t at = 0; at < block.size(); ++at) {
      if (in_string_ && !escaped_)         // most of a file
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
    if (depth_ == 0) {                     // the "[" that was seen
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

/// Room for a block: no larger than the file, as a folder may have many small ones.
std::string block_for(const InputFile& file) {
  return std::string(static_cast<size_t>(std::clamp(file.size(), int64_t{1}, block_bytes)), '\0');
}

template <class Scanner>
void scan_file(const InputFile& file, int64_t offset, Scanner scanner) {
  std::string block = block_for(file);
  for (;;) {
    const size_t count = file.read(offset, block.data(), block.size());
    if (count == 0) break;
    scanner.scan(std::string_view(block).substr(0, count), offset);
    offset += static_cast<int64_t>(count);
  }
  scanner.finish(offset);
}

/// The first character that is not blank; 0: there is none in a block.
char first_character(const InputFile& file, int64_t offset) {
  std::string block = block_for(file);
  block.resize(file.read(offset, block.data(), block.size()));
  for (const char c : block)
    if (!is_blank(c)) return c;
  return 0;
}

}  // namespace

size_t InputFile::read(int64_t offset, char* out, size_t bytes) const {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t count = ::pread(file_.get(), out + done, bytes - done, offset + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    BLIPFT_USER_CHECK(count >= 0, path_, ": cannot be read (", std::strerror(errno), ")");
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

bool index_json_file(const std::string& path, bool may_be_list, std::vector<JsonRecord>& records) {
  const InputFile file(path);
  char mark[3];
  const bool marked = file.read(0, mark, sizeof mark) == 3 && std::string_view(mark, 3) == byte_order_mark;
  const int64_t begin = marked ? 3 : 0;
  const bool list = may_be_list && first_character(file, begin) == '[';
  if (list) scan_file(file, begin, ListScanner(path, records));
  else scan_file(file, begin, LineScanner(path, records));
  return list;
}

}  // namespace blipft
