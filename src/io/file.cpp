// Files: POSIX reads and writes that either complete or throw an error with the file's name.
#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "blipft/checkpoint.h"
#include "blipft/error.h"

namespace blipft::io {

namespace {
// Maximum bytes of one system call. Linux limits a call to 2 GiB - 4 KiB anyway, and network file systems perform
// better with smaller requests that several threads can interleave.
constexpr int64_t max_piece = int64_t{32} << 20;
}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

std::string errno_text() { return std::strerror(errno); }

FileDescriptor open_for_reading(const std::string& path) {
  // O_NONBLOCK: opening a named pipe without a writer would block forever. It has no effect on regular files.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  BLIPFT_USER_CHECK(file.get() >= 0, path, ": cannot be opened for reading: ", errno_text());
  struct stat status{};
  BLIPFT_USER_CHECK(::fstat(file.get(), &status) == 0, path, ": cannot be examined: ", errno_text());
  BLIPFT_USER_CHECK(S_ISREG(status.st_mode), path,
                    ": is not a regular file (", S_ISFIFO(status.st_mode) ? "but a named pipe or process substitution"
                    : S_ISDIR(status.st_mode) ? "but a folder" : "but a device or socket",
                    "); give a file that can be read at random");
  return file;
}

FileDescriptor open_own(const std::string& path, int flags) {
  FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  struct stat status{};
  if (file.get() >= 0 && (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))) return {};
  return file;
}

std::string read_whole_file(const std::string& path, int64_t max_bytes) {
  const FileDescriptor file = open_for_reading(path);
  const int64_t bytes = file_size(file, path);
  BLIPFT_USER_CHECK(bytes <= max_bytes, path, ": has ", bytes, " bytes, expected at most ", max_bytes,
                    " of such a file; is it another kind of file, or damaged?");
  std::string text(static_cast<size_t>(bytes), '\0');
  read_at(file, 0, text.data(), bytes, path);
  return text;
}

std::string creation_advice(int error) {
  if (error == EACCES || error == EPERM || error == EROFS) return "; choose a folder that you may write to";
  if (error == ENOSPC || error == EDQUOT)
    return "; the disk has no room, or no inodes (df -i), for another file: remove some, or choose another disk";
  return "";
}

namespace {

FileDescriptor create(const std::string& path, int flags) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | flags, 0666));
  const int error = errno;
  BLIPFT_USER_CHECK(file.get() >= 0, path, ": cannot be created: ", std::strerror(error), creation_advice(error));
  return file;
}

}  // namespace

FileDescriptor create_file(const std::string& path) { return create(path, O_TRUNC); }

FileDescriptor create_new_file(const std::string& path) { return create(path, O_EXCL | O_NOFOLLOW); }

void write_new_file(const std::string& path, const std::string& text) {
  const FileDescriptor file = create_new_file(path);
  try {
    write_at(file, 0, text.data(), static_cast<int64_t>(text.size()), path);
    sync_file(file, path);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

void replace_file(const std::string& path, const std::string& fresh, const std::string& text) {
  struct stat status{};
  if (::lstat(fresh.c_str(), &status) == 0 && S_ISREG(status.st_mode)) ::unlink(fresh.c_str());  // left when killed
  write_new_file(fresh, text);
  if (::rename(fresh.c_str(), path.c_str()) == 0) return;
  const std::string why = errno_text();
  ::unlink(fresh.c_str());
  throw UserError(concat(path, ": cannot be made: ", why));
}

bool name_in_use(const std::string& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0;
}

int64_t file_size(const FileDescriptor& file, const std::string& path) {
  struct stat status{};
  BLIPFT_USER_CHECK(::fstat(file.get(), &status) == 0, path, ": cannot be examined: ", errno_text());
  return static_cast<int64_t>(status.st_size);
}

void read_at(const FileDescriptor& file, int64_t offset, void* out, int64_t bytes, const std::string& what) {
  char* to = static_cast<char*>(out);
  for (int64_t done = 0; done < bytes;) {
    const auto piece = static_cast<size_t>(std::min(bytes - done, max_piece));
    const ssize_t got = ::pread(file.get(), to + done, piece, offset + done);
    if (got < 0 && errno == EINTR) continue;
    BLIPFT_USER_CHECK(got >= 0, what, ": reading ", piece, " bytes at offset ", offset + done, " failed: ",
                      errno_text());
    BLIPFT_USER_CHECK(got > 0, what, ": the file ends at offset ", offset + done, ", ", bytes - done,
                      " bytes too early; it was cut short or changed while it was read");
    done += got;
  }
}

void write_at(const FileDescriptor& file, int64_t offset, const void* data, int64_t bytes, const std::string& what) {
  const char* from = static_cast<const char*>(data);
  for (int64_t done = 0; done < bytes;) {
    const auto piece = static_cast<size_t>(std::min(bytes - done, max_piece));
    const ssize_t put = ::pwrite(file.get(), from + done, piece, offset + done);
    if (put < 0 && errno == EINTR) continue;
    BLIPFT_USER_CHECK(put > 0, what, ": writing ", piece, " bytes at offset ", offset + done, " failed: ",
                      errno_text());
    done += put;
  }
}

int64_t free_bytes(const std::string& folder) {
  struct statvfs info{};
  BLIPFT_USER_CHECK(::statvfs(folder.c_str(), &info) == 0, folder, ": cannot read the free space: ", errno_text());
  const double bytes = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  return static_cast<int64_t>(std::min(bytes, 0x1p62));
}

void sync_file(const FileDescriptor& file, const std::string& path) {
  BLIPFT_USER_CHECK(::fsync(file.get()) == 0, path, ": cannot be flushed to the disk: ", errno_text());
}

void sync_directory(const std::string& path) {
  FileDescriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() >= 0) ::fsync(directory.get());
}

}  // namespace blipft::io

namespace blipft {

std::string read_text_file(const std::string& path, int64_t max_bytes) {
  return io::read_whole_file(path, max_bytes);
}

}  // namespace blipft
