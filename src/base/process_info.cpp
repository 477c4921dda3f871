// Information about processes of this machine; see process_info.h.
#include "base/process_info.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "blipft/error.h"

namespace blipft {

namespace fs = std::filesystem;

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string link_target(const std::string& path) {
  std::error_code error;
  const fs::path target = fs::read_symlink(path, error);
  return error ? "" : target.string();
}

int64_t machine_cores() { return std::max<int64_t>(1, std::thread::hardware_concurrency()); }

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

std::optional<int64_t> whole_number(const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && !text.empty() ? std::optional(value) : std::nullopt;
}

// Fields of /proc/PID/stat: 3 (state), 4 (parent) and 22 (start). They are counted from the end of the name, because
// the name may contain any character.
ProcessStat process_stat(int64_t pid) {
  const std::string line = first_line(concat("/proc/", pid, "/stat"));
  const size_t name_begin = line.find('('), name_end = line.rfind(')');
  if (name_begin == std::string::npos || name_end == std::string::npos) return {};
  ProcessStat stat;
  stat.name = line.substr(name_begin + 1, name_end - name_begin - 1);
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22 && fields >> field; ++i) {
    if (i == 3) stat.state = field;
    if (i == 4) stat.parent = whole_number(field).value_or(0);
    if (i == 22) stat.start = field;
  }
  return stat;
}

std::optional<std::string> process_variable(int64_t pid, const std::string& name) {
  std::ifstream in(concat("/proc/", pid, "/environ"), std::ios::binary);
  const std::string begin = name + "=";
  for (std::string entry; std::getline(in, entry, '\0');)
    if (entry.starts_with(begin)) return entry.substr(begin.size());
  return std::nullopt;
}

std::string process_program(int64_t pid) { return link_target(concat("/proc/", pid, "/exe")); }

std::vector<int64_t> all_processes() {
  std::vector<int64_t> found;
  std::error_code error;
  for (fs::directory_iterator item("/proc", error), end; !error && item != end; item.increment(error))
    if (const auto pid = whole_number(item->path().filename().string())) found.push_back(*pid);
  return found;
}

}  // namespace blipft
