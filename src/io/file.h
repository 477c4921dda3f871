// Files: an owner for a descriptor, and whole reads and writes at an offset.
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

/// "No such file or directory" and the like, for the current errno.
std::string errno_text();

/// Opens an existing regular file for reading; UserError naming it when that fails. Never blocks: what is no regular
/// file (a named pipe, a device, a folder) is refused.
FileDescriptor open_for_reading(const std::string& path);
/// Opens a regular file itself with `flags` of open(): no descriptor where that fails, or where it is a link or no regular file.
/// Never blocks.
FileDescriptor open_own(const std::string& path, int flags);
/// The content of a regular file of at most `most_bytes`; UserError naming it when that fails.
std::string read_whole_file(const std::string& path, int64_t most_bytes);
/// What to do about the errno of a file that could not be created, to follow the reason: "; choose a folder that ...", "; the
/// disk has no room ..."; "": nothing is known.
std::string creation_advice(int error);
/// Creates (or empties) a file for writing; UserError naming it when that fails.
FileDescriptor create_file(const std::string& path);
/// Creates a file for reading and writing whose name is free; UserError naming it if anything has the name, or creating fails.
FileDescriptor create_new_file(const std::string& path);
/// Writes `text` to a new file, which is removed if that fails. UserError naming it, also if anything has the name.
void write_new_file(const std::string& path, const std::string& text);
/// Writes `text` to `path` whole or not at all, through a file `fresh` beside it. UserError naming the file.
void replace_file(const std::string& path, const std::string& fresh, const std::string& text);
/// Returns true if anything has the name, be it a link that leads nowhere.
bool is_taken(const std::string& path);
/// Size in bytes.
int64_t file_size(const FileDescriptor& file, const std::string& path);

/// Reads exactly `bytes` at `offset`; `what` (file, tensor) goes into the message of the UserError. Thread-safe.
void read_at(const FileDescriptor& file, int64_t offset, void* out, int64_t bytes, const std::string& what);
/// Writes exactly `bytes` at `offset`. Thread-safe.
void write_at(const FileDescriptor& file, int64_t offset, const void* data, int64_t bytes, const std::string& what);
/// Bytes that may still be written to the disk of an existing folder; UserError naming it when nobody can say.
int64_t free_bytes(const std::string& folder);
/// Waits until the file's bytes are on the disk.
void sync_file(const FileDescriptor& file, const std::string& path);
/// Waits until a directory's entries are on the disk; file systems that cannot do it are left alone.
void sync_directory(const std::string& path);

}  // namespace blipft::io
