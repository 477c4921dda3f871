// The names of a run's trace files; see trace_files.h.
#include "trace/trace_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <tuple>

#include "blipft/error.h"
#include "io/file.h"
#include "io/hdf5_handle.h"

namespace blipft {

namespace {

constexpr int64_t kMaxNumber = 999'999'999;  // maximum of a part or rank; a name with a larger number is not a trace's

// Removes `word` and the number after it from the front of `name`. Returns false if they are not there.
bool take_number(std::string_view& name, std::string_view word, int64_t& number) {
  if (name.substr(0, word.size()) != word) return false;
  const char* begin = name.data() + word.size();
  const char* end = name.data() + name.size();
  const auto [last, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || *begin == '-' || number > kMaxNumber) return false;
  name.remove_prefix(static_cast<size_t>(last - name.data()));
  return true;
}

// Returns the value of a text attribute of the root group of `file`, or "" if there is none. The caller holds
// hdf5_mutex().
std::string text_attribute(hid_t file, const char* name) {
  if (H5Aexists(file, name) <= 0) return "";
  const io::Hdf5Handle attribute = io::own(H5Aopen(file, name, H5P_DEFAULT), H5Aclose, name, "opening an attribute");
  const io::Hdf5Handle type = io::own(H5Aget_type(attribute.get()), H5Tclose, name, "asking for a type");
  if (H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) <= 0) return "";
  const io::Hdf5Handle space = io::own(H5Aget_space(attribute.get()), H5Sclose, name, "asking for a space");
  if (H5Sget_simple_extent_npoints(space.get()) != 1) return "";
  char* value = nullptr;
  if (H5Aread(attribute.get(), type.get(), &value) < 0 || !value) return "";
  const std::string text = value;
  H5free_memory(value);
  return text;
}

// Returns true if the first bytes of the file are those of a trace. HDF5 cannot open the file of a run that was killed
// before its first record, because it treats the file as still being written.
bool begins_as_trace(const io::FileDescriptor& file) {
  constexpr int64_t kLooked = int64_t{64} << 10;
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) return false;
  std::string text(static_cast<size_t>(std::min<int64_t>(status.st_size, kLooked)), '\0');
  if (::pread(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) return false;
  return text.starts_with("\x89HDF\r\n\x1a\n") && text.find("creator") != std::string::npos &&
         text.find("blipft") != std::string::npos;
}

// Returns true if an open file is a trace of this program.
bool is_own_trace(const io::FileDescriptor& file) {
  try {
    const std::lock_guard lock(io::hdf5_mutex());
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    const std::string path = concat("/proc/self/fd/", file.get());  // this file, even if it was renamed
    for (const unsigned mode : {H5F_ACC_RDONLY, H5F_ACC_RDONLY | H5F_ACC_SWMR_READ}) {
      const hid_t opened = H5Fopen(path.c_str(), mode, H5P_DEFAULT);
      if (opened < 0) continue;
      const io::Hdf5Handle handle = io::own(opened, H5Fclose, path, "opening a trace");
      return text_attribute(handle.get(), "creator") == "blipft";
    }
  } catch (const std::exception&) {
    // The file is damaged or not HDF5.
  }
  return begins_as_trace(file);
}

// Opens a trace of this program. Returns an invalid descriptor if `path` is something else.
io::FileDescriptor open_own_trace(const std::string& path, struct stat& status) {
  io::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || !is_own_trace(file)) return {};
  return file;
}

// Parses part and rank from a file name. Returns false for other files.
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

std::vector<TraceFile> own_trace_files(const std::string& folder) {
  std::vector<TraceFile> own;
  for (TraceFile& file : find_trace_files(folder)) {
    struct stat status{};
    const bool exact = std::filesystem::path(file.path).filename().string() == trace_file_name(file.part, file.rank);
    if (!exact || open_own_trace(file.path, status).get() < 0) continue;
    file.bytes = int64_t{status.st_blocks} * 512;
    own.push_back(std::move(file));
  }
  return own;
}

void remove_trace_files(const std::vector<TraceFile>& files) {
  for (const TraceFile& file : files) {
    struct stat then{}, now{};
    const io::FileDescriptor held = open_own_trace(file.path, then);
    const bool same = held.get() >= 0 && ::lstat(file.path.c_str(), &now) == 0 && now.st_dev == then.st_dev &&
                      now.st_ino == then.st_ino;
    BLIPFT_USER_CHECK(!same || ::unlink(file.path.c_str()) == 0, file.path, ": left by another run, cannot be removed: ",
                      io::errno_text());
  }
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
