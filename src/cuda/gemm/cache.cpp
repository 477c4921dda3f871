// Cache file of GemmPlanner: one line per GPU, library version and problem; the file is replaced atomically.
//
//   blipft-gemm-cache 2
//   <GPU name> cublaslt-<version> <problem> <microseconds> <algorithm as 8 hexadecimal words joined by dots>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <thread>

#include "cuda/device/cuda_check.h"
#include "cuda/gemm/timing.h"

namespace blipft {
namespace {

constexpr const char* kHeader = "blipft-gemm-cache 2";

std::string to_hex(const cublasLtMatmulAlgo_t& algorithm) {
  std::ostringstream out;
  out << std::hex;
  for (int i = 0; i < 8; ++i) out << (i ? "." : "") << algorithm.data[i];
  return out.str();
}

bool from_hex(const std::string& text, cublasLtMatmulAlgo_t& algorithm) {
  std::istringstream in(text);
  in >> std::hex;
  for (int i = 0; i < 8; ++i) {
    if (i > 0 && in.get() != '.') return false;
    if (!(in >> algorithm.data[i])) return false;
  }
  return in.peek() == std::istringstream::traits_type::eof();
}

void warn(const std::string& text) { std::fprintf(stderr, "warning: %s\n", text.c_str()); }

void make_folder_of(const std::string& path) {
  if (const auto folder = std::filesystem::path(path).parent_path(); !folder.empty())
    std::filesystem::create_directories(folder);
}

}  // namespace

CacheLock::CacheLock(const std::string& cache_path) {
  try {
    make_folder_of(cache_path);
  } catch (const std::exception&) {
    return;  // add_to_cache() warns
  }
  file_ = open((cache_path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) return;
  // A process holds the lock for seconds; the wait is limited in case a holder was suspended.
  for (int i = 0; i < 60 * 200; ++i) {
    if (flock(file_, LOCK_EX | LOCK_NB) == 0) return;
    if (errno != EWOULDBLOCK && errno != EINTR) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  (void)close(std::exchange(file_, -1));
}

CacheLock::~CacheLock() {
  if (file_ >= 0) (void)close(file_);  // releases the lock
}

std::map<std::string, GemmPlanner::CacheEntry> GemmPlanner::read_cache(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return {};  // the first run has no file
  std::ifstream in(path);
  if (!in) return {};
  std::map<std::string, CacheEntry> entries;
  std::string line;
  int number = 1;
  bool good = std::getline(in, line) && line == kHeader;
  while (good && std::getline(in, line)) {
    ++number;
    std::istringstream words(line);
    std::string gpu, version, problem, hex, rest;
    CacheEntry entry;
    good = static_cast<bool>(words >> gpu >> version >> problem >> entry.microseconds >> hex) && !(words >> rest) &&
           entry.microseconds > 0 && from_hex(hex, entry.algorithm);
    if (good) entries[concat(gpu, " ", version, " ", problem)] = entry;
  }
  if (good) return entries;
  warn(concat(path, ":", number,
      ": not a line of a matrix product cache; the file is ignored and written anew"));
  return {};
}

void GemmPlanner::add_to_cache(const std::map<std::string, CacheEntry>& found) {
  // A line that does not work with this library is replaced. Otherwise, if another rank has written a line for the same
  // problem in the meantime, that line is kept, so that all later runs read the same choice.
  std::map<std::string, CacheEntry> lines = found;
  std::erase_if(lines, [this](const auto& line) { return cache_.count(line.first) == 0; });
  for (const auto& [key, entry] : read_cache(cache_path_)) lines.emplace(key, entry);
  for (const auto& [key, entry] : lines) cache_[key] = entry;
  cache_.insert(found.begin(), found.end());
  const std::string temporary = concat(cache_path_, ".", getpid());
  try {
    make_folder_of(cache_path_);
    std::ofstream out(temporary);
    out << kHeader << "\n" << std::fixed << std::setprecision(2);
    for (const auto& [key, entry] : cache_)
      out << key << " " << entry.microseconds << " " << to_hex(entry.algorithm) << "\n";
    out.close();
    if (!out) throw Error(concat("cannot write ", temporary));
    std::filesystem::rename(temporary, cache_path_);
  } catch (const std::exception& error) {
    // Training continues without the file; only the next start is slower.
    warn(concat("the matrix product cache ", cache_path_, " cannot be written: ", error.what()));
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
  }
}

}  // namespace blipft
