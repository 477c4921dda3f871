// StateWriter: writes the state of a rank to its file of a checkpoint while training continues.
//
// The main thread copies device memory to page-locked chunks and continues; the writer's threads compute checksums and
// write the chunks. If the state does not fit in the chunks, the main thread waits for the file system.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "blipft/device.h"
#include "blipft/store.h"
#include "io/file.h"
#include "io/state_files.h"
#include "ops/host_memory.h"

namespace blipft {

class StateWriter {
 public:
  /// Allocates chunks for `bytes` of host memory, at least three, on another thread.
  StateWriter(Device& device, int64_t bytes);
  /// Waits until the current file is written.
  ~StateWriter();
  StateWriter(const StateWriter&) = delete;
  StateWriter& operator=(const StateWriter&) = delete;

  /// Copies `parts` and starts to write them to `path`. Returns when the memory of `parts` may change again. The device
  /// must be idle. Throws UserError if the file cannot be created; finish() throws later errors.
  void begin(const std::string& path, const std::vector<ParameterStore::Part>& parts);
  /// Returns true if the file of the last begin() is still being written.
  bool busy() const;
  /// Waits for the file of the last begin() and returns its description. Throws the first error.
  io::StateFile finish();
  /// Duration of the last begin(): the copy from device to host.
  double pause_seconds() const { return pause_seconds_; }
  /// Time from begin() until all bytes were on the disk, for the last complete file.
  double write_seconds() const { return write_seconds_; }

  static constexpr int64_t kChunkBytes = io::kSegmentBytes;

 private:
  /// The part of a segment that is in one chunk.
  struct Part {
    size_t piece;
    int64_t number;                        // index of the segment in its piece
    int64_t offset, bytes;                 // range in the file
    const char* source;
    int64_t at = 0;                        // offset in the chunk
    uint32_t checksum = 0;
  };
  struct Chunk {
    HostMemory memory;
    Event copied;
    std::vector<Part> parts;
    int64_t used = 0;
  };
  std::vector<Part> segments_of(const std::vector<const void*>& data) const;
  void take_chunks(int64_t count);
  void copy(const std::vector<Part>& segments);
  void join_checksums();
  void set_complete(bool complete);
  Chunk* free_chunk();
  void send(Chunk* chunk);
  void run();
  void write(Chunk& chunk);

  Device& device_;
  io::StateFile file_;
  std::vector<Part> written_;              // written parts of file_, by all threads
  std::string path_;
  std::unique_ptr<io::FileDescriptor> target_;
  double pause_seconds_ = 0, write_seconds_ = 0;
  std::chrono::steady_clock::time_point begun_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<Chunk*> free_;
  std::deque<Chunk*> full_;
  int64_t writing_ = 0;                    // number of threads that write a chunk or sync
  bool complete_ = true, synced_ = true;   // all chunks were sent; all bytes are on the disk
  bool ends_ = false;
  std::exception_ptr error_;               // of the current file
  std::exception_ptr no_memory_;           // permanent: no chunk could be allocated
  std::vector<std::thread> threads_;       // the threads use the members above
};

}  // namespace blipft
