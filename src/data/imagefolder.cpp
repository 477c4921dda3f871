// ImageFolder: a directory of pictures with captions in metadata.jsonl or metadata.csv.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <unordered_map>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "blipft/error.h"
#include "data/datasets.h"

namespace blipft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Entry {
  std::string file;   ///< as the metadata says
  std::string text;
  int64_t line = 0;   ///< of the metadata file, from 1
};

std::string read_text(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  BLIPFT_USER_CHECK(in.good(), file, ": cannot be opened (", std::strerror(errno), ")");
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // byte order mark
  return text;
}

bool is_blank(const std::string& line) { return line.find_first_not_of(" \t\r") == std::string::npos; }

std::vector<Entry> parse_jsonl(const std::string& file) {
  std::vector<Entry> entries;
  const std::string text = read_text(file);
  int64_t line = 0;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    const std::string row = text.substr(start, end - start);
    start = end + 1;
    ++line;
    if (is_blank(row)) continue;
    const std::string place = concat(file, ":", line);
    const json object = parse_json(row, place);
    Entry entry;
    entry.text = caption_from_json(object, place);
    entry.line = line;
    const auto name = object.find("file_name");
    BLIPFT_USER_CHECK(name != object.end(), place, ": no key \"file_name\", expected the picture's path");
    BLIPFT_USER_CHECK(name->is_string() && !name->get_ref<const std::string&>().empty(), place,
                      ": key \"file_name\" is ",
                      name->dump(), ", expected the picture's path");
    entry.file = name->get<std::string>();
    entries.push_back(std::move(entry));
  }
  return entries;
}

/// Reads CSV records as RFC 4180 has them: fields may be quoted, then hold commas, line ends and doubled quotes.
class CsvReader {
 public:
  CsvReader(const std::string& file, const std::string& text) : file_(file), text_(text) {}

  /// The next record; false at the end. line() is where it began.
  bool next(std::vector<std::string>& fields) {
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
  int64_t line() const { return record_line_; }

 private:
  std::string plain() {
    const size_t end = std::min(text_.find_first_of(",\r\n", at_), text_.size());
    std::string field = text_.substr(at_, end - at_);
    at_ = end;
    return field;
  }
  std::string quoted() {
    std::string field;
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == '"') {
        ++at_;
        if (at_ >= text_.size() || text_[at_] != '"') {
          BLIPFT_USER_CHECK(at_ >= text_.size() || std::strchr(",\r\n", text_[at_]), file_, ":", line_, ": found '",
                            text_[at_],
                            "' after a closing quote, expected a comma or the end of the line");
          return field;
        }
      }
      if (text_[at_] == '\n') ++line_;
      field += text_[at_];
    }
    throw UserError(concat(file_, ":", record_line_, ": a quoted field that begins in this record is never closed"));
  }
  void end_line() {
    if (at_ < text_.size() && text_[at_] == '\r') ++at_;
    if (at_ < text_.size() && text_[at_] == '\n') ++at_;
    ++line_;
  }

  const std::string& file_;
  const std::string& text_;
  size_t at_ = 0;
  int64_t line_ = 1, record_line_ = 1;
};

std::vector<Entry> parse_csv(const std::string& file) {
  const std::string text = read_text(file);
  CsvReader reader(file, text);
  std::vector<std::string> fields;
  BLIPFT_USER_CHECK(reader.next(fields), file, ": empty, expected a header line with the columns file_name and text");
  const size_t columns = fields.size();
  const auto column = [&](const char* name) {
    for (size_t i = 0; i < columns; ++i)
      if (fields[i] == name) return i;
    return columns;
  };
  const size_t name = column("file_name");
  const size_t caption = column("text") < columns ? column("text") : column("caption");
  BLIPFT_USER_CHECK(name < columns, file, ":1: no column \"file_name\" in the header");
  BLIPFT_USER_CHECK(caption < columns, file, ":1: no column \"text\" (or \"caption\") in the header");
  std::vector<Entry> entries;
  while (reader.next(fields)) {
    if (fields.size() == 1 && is_blank(fields[0])) continue;
    BLIPFT_USER_CHECK(fields.size() == columns, file, ":", reader.line(), ": found ", fields.size(),
                      " fields, expected ", columns,
                      " as in the header; quote fields that hold commas");
    BLIPFT_USER_CHECK(!fields[name].empty(), file, ":", reader.line(), ": column \"file_name\" is empty");
    entries.push_back({fields[name], fields[caption], reader.line()});
  }
  return entries;
}

/// Looks once into each directory that holds pictures: far faster than a look at each file on network file systems.
void check_pictures(const std::string& metadata, const fs::path& root, const std::vector<Entry>& entries) {
  std::unordered_map<std::string, std::unordered_set<std::string>> directories;
  int64_t absent = 0;
  const Entry* first = nullptr;
  for (const Entry& entry : entries) {
    const fs::path path = root / entry.file;
    const std::string parent = path.parent_path().string();
    const auto [directory, added] = directories.try_emplace(parent);
    if (added) {
      std::error_code error;
      for (fs::directory_iterator item(parent, error), end; !error && item != end; item.increment(error)) {
        std::error_code broken;  // a link to nowhere, or a directory, is no picture
        if (item->is_regular_file(broken)) directory->second.insert(item->path().filename().string());
      }
    }
    if (directory->second.contains(path.filename().string())) continue;
    if (!first) first = &entry;
    ++absent;
  }
  BLIPFT_USER_CHECK(absent == 0, metadata, ":", first->line, ": picture ", (root / first->file).string(),
                    " does not exist (",
                    absent, " of ", entries.size(), " pictures are absent); paths are relative to ", root.string());
}

class ImageFolder final : public Dataset {
 public:
  ImageFolder(fs::path root, std::vector<Entry> entries, std::optional<bool> append_eos)
      : root_(std::move(root)), entries_(std::move(entries)), append_eos_(append_eos) {}

  int64_t size() const override { return static_cast<int64_t>(entries_.size()); }

  // With the sizes of a few pictures: a look at each of a million takes minutes on network file systems.
  void identify(const Take& take) const override {
    constexpr int64_t kLookedAt = 32;
    const int64_t stride = std::max<int64_t>(1, size() / kLookedAt);
    for (int64_t i = 0; i < size(); ++i) {
      const Entry& entry = entries_[static_cast<size_t>(i)];
      std::error_code error;
      const bool look = i % stride == 0;
      take(entry.file, look ? static_cast<int64_t>(fs::file_size(root_ / entry.file, error)) : 0);
      take(entry.text, entry.line);
    }
  }

  Sample read(int64_t index) const override {
    BLIPFT_CHECK(index >= 0 && index < size(), "sample ", index, " of ", size());
    const Entry& entry = entries_[index];
    Sample sample;
    sample.name = (root_ / entry.file).string();
    sample.segments = {{entry.text}};
    sample.ends = append_eos_;
    std::ifstream in(sample.name, std::ios::binary | std::ios::ate);
    BLIPFT_USER_CHECK(in.good(), sample.name, ": cannot be opened (", std::strerror(errno), ")");
    std::vector<uint8_t>& picture = sample.picture.emplace(static_cast<size_t>(in.tellg()));
    in.seekg(0);
    in.read(reinterpret_cast<char*>(picture.data()), static_cast<std::streamsize>(picture.size()));
    BLIPFT_USER_CHECK(in.good() || picture.empty(), sample.name, ": cannot be read (", std::strerror(errno),
                      ")");
    return sample;
  }

 private:
  fs::path root_;
  std::vector<Entry> entries_;
  std::optional<bool> append_eos_;
};

}  // namespace

std::string find_metadata(const std::string& path) {
  for (const fs::path& directory : {fs::path(path), fs::path(path) / "train"})
    for (const char* name : {"metadata.jsonl", "metadata.csv"}) {
      std::error_code ignored;
      if (fs::is_regular_file(directory / name, ignored)) return (directory / name).string();
    }
  return {};
}

std::unique_ptr<Dataset> open_image_folder(const std::string& path, const TextSettings& settings) {
  const std::string metadata = find_metadata(path);
  BLIPFT_USER_CHECK(!metadata.empty(), "no ImageFolder at ", path,
                    ": expected metadata.jsonl or metadata.csv there or in train/");
  const fs::path root = fs::path(metadata).parent_path();
  std::vector<Entry> entries = metadata.ends_with(".csv") ? parse_csv(metadata) : parse_jsonl(metadata);
  BLIPFT_USER_CHECK(!entries.empty(), metadata, ": no samples in it");
  check_pictures(metadata, root, entries);
  BLIPFT_USER_CHECK(std::any_of(entries.begin(), entries.end(), [](const Entry& entry) { return !entry.text.empty(); }),
                    metadata, ": all ", entries.size(), " captions are empty, so there is nothing to learn; write them",
                    " under text (or caption)");
  return std::make_unique<ImageFolder>(root, std::move(entries), settings.append_eos);
}

}  // namespace blipft
