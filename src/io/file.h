// Files: an owner for a file descriptor, and complete reads and writes at an offset.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace blipft::io {

/// Owns a POSIX file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

/// Returns the message for the current errno, such as "No such file or directory".
std::string errno_text();

/// Opens an existing regular file for reading. Throws UserError naming the file on failure. Never blocks: anything but
/// a regular file (a named pipe, a device, a folder) is refused.
FileDescriptor open_for_reading(const std::string& path);
/// Opens a regular file with the given open() `flags`. Returns an invalid descriptor on failure, or if the path is a
/// symbolic link or not a regular file. Never blocks.
FileDescriptor open_own(const std::string& path, int flags);
/// Returns the content of a regular file of at most `max_bytes`. Throws UserError naming the file on failure.
std::string read_whole_file(const std::string& path, int64_t max_bytes);
/// Returns advice for the errno of a file that could not be created, for appending to the reason: "; choose a folder
/// that ...", "; the disk has no room ...", or "" if there is no advice for this errno.
std::string creation_advice(int error);
/// Creates (or empties) a file for writing. Throws UserError naming the file on failure.
FileDescriptor create_file(const std::string& path);
/// Creates a new file for reading and writing. Throws UserError naming the file if the name exists or creation fails.
FileDescriptor create_new_file(const std::string& path);
/// Writes `text` to a new file, which is removed if that fails. UserError naming it, also if anything has the name.
void write_new_file(const std::string& path, const std::string& text);
/// Writes `text` to `path` whole or not at all, through a file `fresh` beside it. UserError naming the file.
void replace_file(const std::string& path, const std::string& fresh, const std::string& text);
/// Returns true if anything has the name, be it a link that leads nowhere.
bool name_in_use(const std::string& path);
/// Size in bytes.
int64_t file_size(const FileDescriptor& file, const std::string& path);

/// Reads exactly `bytes` bytes at `offset`. `what` (file, tensor) is used in the message of the UserError. Thread-safe.
void read_at(const FileDescriptor& file, int64_t offset, void* out, int64_t bytes, const std::string& what);
/// Writes exactly `bytes` bytes at `offset`. Thread-safe.
void write_at(const FileDescriptor& file, int64_t offset, const void* data, int64_t bytes, const std::string& what);
/// Returns the free bytes on the disk of an existing folder. Throws UserError naming the folder if they are unknown.
int64_t free_bytes(const std::string& folder);
/// Waits until the file's content is on the disk (fsync).
void sync_file(const FileDescriptor& file, const std::string& path);
/// Waits until the directory's entries are on the disk; ignores file systems that do not support this.
void sync_directory(const std::string& path);

}  // namespace blipft::io
