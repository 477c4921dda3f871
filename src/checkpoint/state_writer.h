// StateWriter: writes what a rank holds into a checkpoint's file, beside the training.
//
// The main thread copies device memory into page-locked chunks and goes on; threads of the writer's own give the chunks
// checksums and write them. Where chunks are fewer than the bytes, the main thread waits for the file system.
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
  /// Chunks for `bytes` of host memory are taken on a thread beside the caller's, and at least three in all.
  StateWriter(Device& device, int64_t bytes);
  /// Waits for what is being written.
  ~StateWriter();
  StateWriter(const StateWriter&) = delete;
  StateWriter& operator=(const StateWriter&) = delete;

  /// Copies `parts` and begins to write them to `path`. Returns when the memory of `parts` may change again. The device
  /// is idle. Throws UserError when the file cannot be made; what fails later, finish() tells.
  void begin(const std::string& path, const std::vector<ParameterStore::Part>& parts);
  /// Whether the file of the last begin() is still being written.
  bool busy() const;
  /// Waits for it. What has been written; throws what went wrong.
  io::StateFile finish();
  /// How long the last begin() took: device to host.
  double pause_seconds() const { return pause_seconds_; }
  /// From begin() to the last byte on the disk, of the last file that was finished.
  double write_seconds() const { return write_seconds_; }

  static constexpr int64_t kChunkBytes = io::kSegmentBytes;

 private:
  /// What a chunk has of a segment.
  struct Part {
    size_t piece;
    int64_t number;                        // of the piece's segments
    int64_t offset, bytes;                 // in the file
    const char* source;
    int64_t at = 0;                        // in its chunk
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
  std::vector<Part> written_;              // of file_, by any thread
  std::string path_;
  std::unique_ptr<io::FileDescriptor> target_;
  double pause_seconds_ = 0, write_seconds_ = 0;
  std::chrono::steady_clock::time_point begun_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<Chunk*> free_;
  std::deque<Chunk*> full_;
  int64_t writing_ = 0;                    // chunks that threads hold
  bool complete_ = true, synced_ = true;   // all chunks were sent; all is on the disk
  bool ends_ = false;
  std::exception_ptr error_;               // of the file under way
  std::exception_ptr no_memory_;           // for good: there is not one chunk
  std::vector<std::thread> threads_;       // last: they use the members above
};

}  // namespace blipft
