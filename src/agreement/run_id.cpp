// Ids of runs; see run_id.h.
#include "agreement/run_id.h"

#include <fcntl.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "blipft/error.h"
#include "io/file.h"

namespace blipft {

namespace {

constexpr int64_t kMaxHeading = 512;
constexpr size_t kIdDigits = 32;

// Returns the text before the run id in the first line of a record file.
std::string before_id(const std::string& name) {
  if (name == kMetricsFile) return "{\"event\":\"run\",\"made_by\":\"blipft\",\"run_id\":\"";
  return concat("# blipft ", name, " of run ");
}

}  // namespace

std::string run_id_of(const std::map<std::string, std::string>& run) {
  const auto found = run.find(kRunId);
  return found == run.end() ? "" : found->second;
}

std::string new_run_id() {
  unsigned char bytes[16];
  BLIPFT_CHECK(::getrandom(bytes, sizeof bytes, 0) == static_cast<ssize_t>(sizeof bytes),
               "no random bytes for the run's id: ", io::errno_text());
  constexpr char kDigits[] = "0123456789abcdef";
  std::string id;
  for (const unsigned char byte : bytes) id += {kDigits[byte >> 4], kDigits[byte & 15]};
  return id;
}

std::string agree_on_run_id(const World& world, const std::string& earlier) {
  std::string id = earlier;
  world.run_agreeing_on_errors([&] {
    if (world.rank() == 0 && id.empty()) id = new_run_id();
  });
  return world.from_rank(0, id);
}

std::string record_heading(const std::string& name, const std::string& run_id) {
  return before_id(name) + run_id + (name == kMetricsFile ? "\"" : "");
}

std::string run_of_record_file(const std::string& folder, const std::string& name) {
  const std::string path = (std::filesystem::path(folder) / name).string(), front = before_id(name);
  const io::FileDescriptor file = io::open_own(path, O_RDONLY);
  if (file.get() < 0) return "";
  std::string text(static_cast<size_t>(std::min(kMaxHeading, io::file_size(file, path))), '\0');
  try {
    io::read_at(file, 0, text.data(), static_cast<int64_t>(text.size()), path);
  } catch (const UserError&) {
    return "";
  }
  if (!text.starts_with(front)) return "";
  const std::string id = text.substr(front.size(), kIdDigits);
  const bool whole = id.size() == kIdDigits && id.find_first_not_of("0123456789abcdef") == std::string::npos;
  return whole ? id : "";
}

}  // namespace blipft
