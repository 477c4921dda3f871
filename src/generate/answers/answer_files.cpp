// Files of a generation; see answer_files.h.
#include "generate/answers/answer_files.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "io/file.h"

namespace blipft {

namespace {

constexpr int kMaxFolders = 9999;

// mkdir fails if the folder exists, so two generations never share one.
std::string make_folder(const Config& config) {
  const std::string& output = config.output.path;
  std::error_code error;
  std::filesystem::create_directories(output, error);
  BLIPFT_USER_CHECK(!error, location_of(config, "output.path"), ": output.path: cannot create the folder ", output, ": ",
                    error.message(), "; choose a folder that you may write to");
  for (int i = 1; i <= kMaxFolders; ++i) {
    char number[16];
    std::snprintf(number, sizeof number, "%04d", i);
    const std::string folder = concat(output, "/generated-", number);
    if (::mkdir(folder.c_str(), 0777) == 0) return folder;
    BLIPFT_USER_CHECK(errno == EEXIST, location_of(config, "output.path"), ": output.path: cannot create ", folder, ": ",
                      io::errno_text(), "; choose a folder that you may write to");
  }
  throw UserError(concat(location_of(config, "output.path"), ": output.path: ", output, " has ", kMaxFolders,
                         " folders generated-NNNN already; choose another output.path"));
}

}  // namespace

AnswerFiles::AnswerFiles(const Config& config, const World& world) : world_(world) {
  world_.run_agreeing_on_errors([&] {
    if (world_.rank() != 0) return;
    folder_ = make_folder(config);
    write("config.yaml", to_yaml(config, false));
  });
  folder_ = world_.from_rank(0, folder_);
}

void AnswerFiles::open_partial() {
  char rank[32] = "";
  if (world_.size() > 1) std::snprintf(rank, sizeof rank, ".rank%04d", static_cast<int>(world_.rank()));
  const std::string path = concat(folder_, "/generated", rank, ".partial.jsonl");
  io::FileDescriptor file = io::create_new_file(path);
  partial_ = io::KnownFile(path);
  lines_ = std::make_unique<io::LineFile>(std::move(file), path,
                                          [](int64_t lost) { return concat("{\"lost_lines\": ", lost, "}"); });
}

void AnswerFiles::check_partial() const {
  (void)lines_->wait_until_written(std::chrono::seconds(60));
  BLIPFT_USER_CHECK(lines_->failure().empty(), lines_->failure(), "; what was written before is in ", folder_);
}

std::string AnswerFiles::write(const std::string& name, const std::string& text) const {
  std::string path = folder_ + "/" + name;
  io::write_new_file(path, text);
  return path;
}

void print_scores(const std::vector<Score>& scores) {
  for (const Score& one : scores) {
    char error[64] = "";
    if (one.standard_error) std::snprintf(error, sizeof error, " (standard error %.4g)", *one.standard_error);
    std::printf("%-10s %.4g%s\n", one.metric.c_str(), one.value, error);
  }
}

}  // namespace blipft
