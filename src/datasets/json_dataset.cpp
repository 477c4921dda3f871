// JSON data: files of records, either one record per line or the elements of a list; and CSV.
//
// Opening scans the files once and stores the offset of each record. Records are read, parsed and converted to text on
// demand. A file is open only while it is read, because a dataset may have more files than a process may open.
#include <algorithm>
#include <filesystem>
#include <mutex>
#include <set>

#include <nlohmann/json.hpp>

#include "blipft/error.h"
#include "datasets/csv.h"
#include "datasets/dataset_formats.h"
#include "datasets/json_index.h"
#include "datasets/record_text.h"
#include "io/gzip.h"
#include "io/paths.h"

namespace blipft {
namespace {

namespace fs = std::filesystem;

bool has_record_name(const fs::path& path) {
  const std::string suffix = record_suffix(path.string());
  return suffix == ".json" || suffix == ".jsonl" || suffix == ".csv" || suffix == ".tsv";
}

ListChoice list_choice(const TextSettings& settings) {
  const auto named = settings.keys.find("records");
  return {named == settings.keys.end() ? "" : named->second, {name_of(settings, "messages"), "conversations"}};
}

class JsonDataset final : public Dataset {
 public:
  JsonDataset(std::vector<std::string> files, TextSettings settings) : settings_(std::move(settings)) {
    if (settings_.pictures.empty()) settings_.pictures = io::absolute_path((fs::path(files.front()).parent_path() / ".").string());
    for (std::string& file : files) {
      File& one = files_.emplace_back(File{std::move(file)});
      const size_t before = records_.size();
      auto input = std::make_shared<const InputFile>(one.path);
      if (io::is_gzip_name(one.path)) one.content = input;
      one.form = index_records(*input, list_choice(settings_), records_, one.checksum);
      if (one.form == RecordForm::csv && records_.size() > before) {
        one.separator = csv_separator(text_of(one, records_[before]));
        one.columns = csv_columns(one.path, fields_of(one, records_[before]));
        records_.erase(records_.begin() + static_cast<ptrdiff_t>(before));
      }
      BLIPFT_USER_CHECK(records_.size() > before, one.path, ": empty, expected ",
                        one.form == RecordForm::csv ? "a header line with the columns' names and records behind it"
                                                    : "records: a JSON object in each line",
                        record_suffix(one.path) == ".json" ? ", or a list of them" : "");
      first_records_.push_back(size());
    }
    records_.shrink_to_fit();
    for (size_t i = 0; i < files_.size(); ++i) check(first_records_[i]);
  }

  int64_t size() const override { return static_cast<int64_t>(records_.size()); }
  bool has_pictures() const override { return false; }

  void identify(const Take& take) const override {
    for (size_t i = 0; i < files_.size(); ++i) take(fs::path(files_[i].path).filename().string(), first_records_[i]);
    for (const JsonRecord& record : records_) take("", record.bytes);
  }

  void identify_contents(const Take& take) const override {
    for (const File& file : files_) take("", file.checksum);
  }

  Sample read(int64_t index) const override { return from_record(index, sample_of_record); }
  Prompt read_prompt(int64_t index) const override { return from_record(index, prompt_of_record); }
  std::string unread_keys() const override {
    const std::lock_guard lock(unread_mutex_);
    return unread_.text();
  }
  SplitGroup split_group(int64_t index) const override {
    try {
      std::string pictures;
      if (settings_.pictures_in_texts)
        for (const PictureFile& picture : read(index).pictures) pictures += picture.file + "\n";
      if (!pictures.empty()) return {pictures, false};
      return {from_record(index, prompt_group_of_record), true};
    } catch (const UserError&) {           // read() reports the error
      return {};
    }
  }

 private:
  struct File {
    std::string path;
    RecordForm form = RecordForm::lines;
    std::vector<std::string> columns = {};  // only for CSV
    char separator = ',';                   // only for CSV
    uint32_t checksum = 0;                  // CRC-32C of the file's text
    std::shared_ptr<const InputFile> content = {};  // content of a .gz file, which has no random access
  };

  void check(int64_t index) const {          // reads the first record to check the format
    settings_.for_prompts ? (void)read_prompt(index) : (void)read(index);
  }
  template <class Result>
  using Maker = Result (*)(const nlohmann::ordered_json&, const TextSettings&, const std::string& location);

  template <class Result>
  Result from_record(int64_t index, Maker<Result> make) const {
    const auto [record, location] = parsed(index);
    note_unread_keys(index, record, location);
    if (std::string key = unrendered_key_of_record(record, settings_, location); !key.empty()) refuse_unrendered(key, location);
    return make(record, settings_, location);
  }

  /// Counts the unread keys of a record, once for each record.
  void note_unread_keys(int64_t index, const nlohmann::ordered_json& record, const std::string& location) const {
    const std::lock_guard lock(unread_mutex_);
    seen_.resize(records_.size());
    if (seen_[static_cast<size_t>(index)]) return;
    unread_.add(unread_keys_of_record(record, settings_, location));
    seen_[static_cast<size_t>(index)] = true;
  }

  /// Refuses a record with data that is not rendered: training on it would teach the model to answer without this data.
  [[noreturn]] void refuse_unrendered(const std::string& key, const std::string& location) const {
    std::call_once(counted_, [&] {
      for (int64_t i = 0; i < size(); ++i) {
        try {
          unrendered_ += !unrendered_key_of_record(parsed(i).first, settings_, location).empty();
        } catch (const UserError&) {       // a broken record is reported when it is read
        }
      }
    });
    blipft::refuse_unrendered(location, key, unrendered_, size());
  }

  /// A record, and its file and line.
  std::pair<nlohmann::ordered_json, std::string> parsed(int64_t index) const {
    BLIPFT_CHECK(index >= 0 && index < size(), "sample ", index, " of ", size());
    const auto next = std::upper_bound(first_records_.begin(), first_records_.end(), index);
    const size_t number = static_cast<size_t>(next - first_records_.begin()) - 1;
    const File& file = files_[number];
    const JsonRecord& record = records_[static_cast<size_t>(index)];
    std::string location = concat(file.path, ":", record.line);
    if (file.form == RecordForm::csv) {
      const std::vector<std::string> fields = fields_of(file, record);
      check_csv_fields(location, fields.size(), file.columns.size());
      nlohmann::ordered_json object = nlohmann::ordered_json::object();
      for (size_t i = 0; i < fields.size(); ++i) object[file.columns[i]] = fields[i];
      return {std::move(object), std::move(location)};
    }
    if (file.form == RecordForm::list)       // the whole list may be on one line
      location += concat(" (record ", index - first_records_[number] + 1, ")");
    nlohmann::ordered_json object = parse_json<nlohmann::ordered_json>(text_of(file, record), location);
    return {std::move(object), std::move(location)};
  }

  static std::string text_of(const File& file, const JsonRecord& record) {
    std::string text(record.bytes, '\0');
    const size_t count = file.content ? file.content->read(record.offset, text.data(), text.size())
                                      : InputFile(file.path).read(record.offset, text.data(), text.size());
    BLIPFT_USER_CHECK(count == text.size(), file.path, ":",
                      record.line, ": the file ends before this record's end; it has become shorter since the run began");
    return text;
  }
  static std::vector<std::string> fields_of(const File& file, const JsonRecord& record) {
    const std::string text = text_of(file, record);
    std::vector<std::string> fields;
    CsvReader(file.path, text, record.line, file.separator).next(fields);
    return fields;
  }

  std::vector<File> files_;
  TextSettings settings_;
  std::vector<JsonRecord> records_;         // records of all files, in order
  std::vector<int64_t> first_records_ = {0};  // index of the first record of each file, and the end
  mutable std::mutex unread_mutex_;
  mutable UnreadKeys unread_;               // of the records seen
  mutable std::vector<bool> seen_;
  mutable std::once_flag counted_;
  mutable int64_t unrendered_ = 0;          // number of records with such a key, once counted
};

// A folder is read as one set, so files that are meant for validation would be used for training.
void check_folder(const std::string& path, const std::vector<std::string>& files) {
  const std::set<std::string> apart = {"val", "valid", "validation", "dev", "eval", "test"};
  std::string train, other;
  for (const std::string& file : files) {
    const fs::path name = fs::path(file).filename();
    const fs::path stem = io::is_gzip_name(file) ? name.stem().stem() : name.stem();
    if (stem == "train") train = name.string();
    else if (other.empty() && apart.contains(stem.string())) other = name.string();
  }
  BLIPFT_USER_CHECK(train.empty() || other.empty(), path, ": holds ", train, " and ", other,
                    ", and a folder is read whole, as one set; give data.path: ", path, "/", train,
                    " and data.val_path: ", path, "/", other);
}

}  // namespace

std::vector<std::string> find_json_files(const std::string& path) {
  std::vector<std::string> files;
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    if (has_record_name(path)) files.push_back(path);
    return files;
  }
  for (fs::directory_iterator item(path, ignored), end; !ignored && item != end; item.increment(ignored)) {
    std::error_code broken;                 // a dangling link is not a file
    if (has_record_name(item->path()) && item->is_regular_file(broken)) files.push_back(item->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::unique_ptr<Dataset> open_json(const std::string& path, const TextSettings& settings) {
  std::vector<std::string> files = find_json_files(path);
  BLIPFT_USER_CHECK(!files.empty(), "no JSON data at ", path, ": expected a .json, .jsonl, .csv or .tsv file (.gz too), or a directory ",
                    "of them");
  check_folder(path, files);
  return std::make_unique<JsonDataset>(std::move(files), settings);
}

}  // namespace blipft
