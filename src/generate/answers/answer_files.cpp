// Files of a generation; see answer_files.h.
#include "generate/answers/answer_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>

#include "io/file.h"
#include "io/json.h"

namespace blipft {

namespace {

constexpr int kMostFolders = 9999;

// mkdir makes a folder that was not there: two generations never share one.
std::string make_folder(const Config& config) {
  const std::string& output = config.output.path;
  std::error_code error;
  std::filesystem::create_directories(output, error);
  BLIPFT_USER_CHECK(!error, place_of(config, "output.path"), ": output.path: cannot create the folder ", output, ": ",
                    error.message(), "; choose a folder that you may write to");
  for (int i = 1; i <= kMostFolders; ++i) {
    char number[16];
    std::snprintf(number, sizeof number, "%04d", i);
    const std::string folder = concat(output, "/generated-", number);
    if (::mkdir(folder.c_str(), 0777) == 0) return folder;
    BLIPFT_USER_CHECK(errno == EEXIST, place_of(config, "output.path"), ": output.path: cannot create ", folder, ": ",
                      io::errno_text(), "; choose a folder that you may write to");
  }
  throw UserError(concat(place_of(config, "output.path"), ": output.path: ", output, " has ", kMostFolders,
                         " folders generated-NNNN already; choose another output.path"));
}

}  // namespace

AnswerFiles::AnswerFiles(const Config& config, const World& world, const std::string& lines)
    : world_(world), name_(lines) {
  world_.together([&] {
    if (world_.rank() == 0) folder_ = make_folder(config);
  });
  folder_ = world_.from_rank(0, folder_);
  world_.together([&] {
    char rank[32] = "";
    if (world_.size() > 1) std::snprintf(rank, sizeof rank, ".rank%04d", static_cast<int>(world_.rank()));
    partial_ = concat(folder_, "/", name_, rank, ".partial.jsonl");
    io::FileDescriptor file = io::create_new_file(partial_);
    struct stat status{};
    BLIPFT_USER_CHECK(::fstat(file.get(), &status) == 0, partial_, ": cannot be examined: ", io::errno_text());
    partial_device_ = status.st_dev, partial_inode_ = status.st_ino;
    lines_ = std::make_unique<io::LineFile>(std::move(file), partial_, [](int64_t lost) {
      return concat("{\"lost_lines\": ", lost, "}");
    });
    if (world_.rank() == 0) write("config.yaml", to_yaml(config, false));
  });
}

void AnswerFiles::add(const std::string& line) {
  lines_->add(line);
  if (world_.size() > 1 || world_.rank() == 0) mine_ += line + "\n";
}

std::vector<std::string> AnswerFiles::all_lines() {
  world_.together([&] {
    (void)lines_->settle(std::chrono::seconds(60));
    BLIPFT_USER_CHECK(lines_->failure().empty(), lines_->failure(), "; what was written before is in ", folder_);
  });
  std::vector<std::string> lines;
  for (const std::string& text : world_.gather_texts(mine_)) {
    std::istringstream all(text);
    for (std::string line; std::getline(all, line);) lines.push_back(line);
  }
  return lines;
}

void AnswerFiles::write(const std::string& name, const std::string& text) const {
  const std::string path = folder_ + "/" + name;
  const io::FileDescriptor file = io::create_new_file(path);
  io::write_at(file, 0, text.data(), static_cast<int64_t>(text.size()), path);
  io::sync_file(file, path);
}

std::string AnswerFiles::write_lines(const std::vector<std::string>& lines) const {
  const std::string name = name_ + ".jsonl", path = folder_ + "/" + name;
  std::map<int64_t, std::string> sorted;
  for (const std::string& line : lines)
    sorted[io::parse_json(line, path).at("sample").get<int64_t>()] = line;
  std::string text;
  for (const auto& [sample, line] : sorted) text += line + "\n";
  write(name, text);
  return path;
}

void AnswerFiles::remove_partial() const {
  struct stat status{};
  if (::lstat(partial_.c_str(), &status) != 0) return;
  if (status.st_dev != partial_device_ || status.st_ino != partial_inode_) return;
  ::unlink(partial_.c_str());              // a partial file that cannot be removed does no harm
}

void print_scores(const std::vector<Score>& scores) {
  for (const Score& one : scores) {
    char error[64] = "";
    if (one.standard_error) std::snprintf(error, sizeof error, " (standard error %.4g)", *one.standard_error);
    std::printf("%-10s %.4g%s\n", one.metric.c_str(), one.value, error);
  }
}

}  // namespace blipft
