// Files of a run folder; see record_files.h.
#include "agreement/record_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>

#include "blipft/error.h"
#include "io/file.h"
#include "io/paths.h"

namespace blipft {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kPiece = int64_t{1} << 20, kMaxRow = int64_t{1} << 16;

std::string in(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }

// Throws UserError unless the file does not exist or the run wrote it.
void check_own(const RecordFolder& record, const std::string& name) {
  const std::string path = in(record.folder, name), run = run_of_record_file(record.folder, name);
  BLIPFT_USER_CHECK(run == record.run_id || !io::name_in_use(path), path, ": is ",
                    run.empty() ? "not of blipft's making, and stays as it is"
                                : concat("of another run (", run, "), and stays as it is"),
                    "; move it away, or choose another output.path");
}

// Returns the step of a row about a step or a validation, else nullopt. This program writes the keys in this order.
std::optional<int64_t> step_of_row(std::string_view row) {
  for (const std::string_view front : {"{\"event\":\"step\",\"step\":", "{\"event\":\"validation\",\"step\":"}) {
    if (!row.starts_with(front)) continue;
    int64_t step = -1;
    if (std::from_chars(row.data() + front.size(), row.data() + row.size(), step).ec == std::errc()) return step;
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> record_files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const char* name : {kConfigFile, kLogFile, kMetricsFile})
    if (!run_of_record_file(folder, name).empty()) names.push_back(name);
  return names;
}

void remove_record_files(const std::string& folder) {
  for (const std::string& name : record_files_in(folder)) {
    const std::string path = in(folder, name);
    BLIPFT_USER_CHECK(::unlink(path.c_str()) == 0, path, ": left by another run, cannot be removed: ", io::errno_text());
  }
}

std::string last_metrics_row(const std::string& folder) {
  const std::string path = in(folder, kMetricsFile);
  const io::FileDescriptor file = io::open_own(path, O_RDONLY);
  if (file.get() < 0 || run_of_record_file(folder, kMetricsFile).empty()) return "";
  try {
    const int64_t size = io::file_size(file, path), begin = std::max<int64_t>(0, size - kMaxRow);
    std::string text(static_cast<size_t>(size - begin), '\0');
    io::read_at(file, begin, text.data(), size - begin, path);
    const size_t end = text.rfind('\n');
    if (end == std::string::npos || end == 0) return "";
    const size_t before = text.rfind('\n', end - 1);
    return before == std::string::npos ? "" : text.substr(before + 1, end - before - 1);
  } catch (const UserError&) {
    return "";
  }
}

void RecordFolder::write_config(const std::string& text) const {
  check_own(*this, kConfigFile);
  const std::string path = in(folder, kConfigFile);
  io::replace_file(path, concat(path, ".", run_id), text);  // no other run uses this temporary name
}

std::unique_ptr<io::LineFile> RecordFolder::open(const std::string& name, const std::string& heading,
                                                 io::LineFile::LostText lost_text) const {
  check_own(*this, name);
  const std::string path = in(folder, name);
  io::FileDescriptor file = io::open_own(path, O_RDWR);
  if (file.get() < 0) {
    BLIPFT_USER_CHECK(!io::name_in_use(path), path, ": cannot be opened for writing: ", io::errno_text());
    file = io::create_new_file(path);
    // The heading is written at once: from now on the file is known to belong to the run.
    const std::string line = heading + "\n";
    io::write_at(file, 0, line.data(), static_cast<int64_t>(line.size()), path);
  }
  return std::make_unique<io::LineFile>(std::move(file), path, std::move(lost_text));
}

int64_t RecordFolder::cut_metrics(int64_t first_step) const {
  const std::string path = in(folder, kMetricsFile);
  if (run_of_record_file(folder, kMetricsFile) != run_id) return 0;
  const io::FileDescriptor file = io::open_own(path, O_RDWR);
  if (file.get() < 0) return 0;            // open() reports the reason
  const int64_t size = io::file_size(file, path);
  int64_t row_begin = 0, cut = -1, rows = 0;
  std::string rest, piece;                 // rest: the incomplete row at the end of a piece
  for (int64_t at = 0; at < size; at += kPiece) {
    piece.resize(static_cast<size_t>(std::min(kPiece, size - at)));
    io::read_at(file, at, piece.data(), static_cast<int64_t>(piece.size()), path);
    rest += piece;
    size_t begin = 0;
    for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const std::optional<int64_t> step = step_of_row(std::string_view(rest).substr(begin, end - begin));
      if (cut < 0 && step && *step >= first_step) cut = row_begin;
      rows += cut >= 0;
      row_begin += static_cast<int64_t>(end + 1 - begin);
    }
    rest.erase(0, begin);
  }
  if (cut < 0) return 0;
  BLIPFT_USER_CHECK(::ftruncate(file.get(), cut) == 0, path, ": cannot be continued: ", io::errno_text());
  return rows;
}

}  // namespace blipft
