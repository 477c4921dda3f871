// The names of a run's trace files; see trace_files.h.
#include "trace/trace_files.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <tuple>

#include "blipft/error.h"

namespace blipft {

namespace {

constexpr int64_t kMostNumber = 999'999'999;  // of a part or rank; names with larger ones are no trace's

// Takes `word` and the number behind it off the front of `name`; whether they were there.
bool take_number(std::string_view& name, std::string_view word, int64_t& number) {
  if (name.substr(0, word.size()) != word) return false;
  const char* begin = name.data() + word.size();
  const char* end = name.data() + name.size();
  const auto [last, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || *begin == '-' || number > kMostNumber) return false;
  name.remove_prefix(static_cast<size_t>(last - name.data()));
  return true;
}

// The part and rank of a file's name; false for other files.
bool parse(std::string_view name, TraceFile& file) {
  constexpr std::string_view front = "trace.";
  if (name.substr(0, front.size()) != front) return false;
  name.remove_prefix(front.size());
  if (take_number(name, "part", file.part)) {
    if (name.substr(0, 1) != ".") return false;
    name.remove_prefix(1);
  }
  return take_number(name, "rank", file.rank) && name == ".h5";
}

}  // namespace

std::string trace_file_name(int64_t part, int64_t rank) {
  char name[64];
  if (part == 0) std::snprintf(name, sizeof name, "trace.rank%04lld.h5", static_cast<long long>(rank));
  else std::snprintf(name, sizeof name, "trace.part%04lld.rank%04lld.h5", static_cast<long long>(part),
                     static_cast<long long>(rank));
  return name;
}

std::vector<TraceFile> find_trace_files(const std::string& folder) {
  std::vector<TraceFile> found;
  std::error_code error;
  if (!std::filesystem::exists(folder, error) && !error) return found;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    TraceFile file{entry->path().string()};
    if (parse(entry->path().filename().string(), file)) found.push_back(file);
  }
  BLIPFT_USER_CHECK(!error, folder, ": cannot look for trace files: ", error.message(),
                    "; give a folder that can be read, or set trace.enabled=false");
  std::sort(found.begin(), found.end(), [](const TraceFile& a, const TraceFile& b) {
    return std::tie(a.part, a.rank) < std::tie(b.part, b.rank);
  });
  return found;
}

int64_t next_trace_part(const std::string& folder) {
  const std::vector<TraceFile> found = find_trace_files(folder);
  return found.empty() ? 0 : found.back().part + 1;
}

void note_part(Trace& trace, int64_t part, int64_t first_step) {
  trace.set_attribute("part", static_cast<double>(part));
  trace.set_attribute("first_step", static_cast<double>(first_step));
}

}  // namespace blipft
