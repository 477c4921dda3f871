// Writes a rank's file of a checkpoint; see state_writer.h.
#include "checkpoint/state_writer.h"

#include <algorithm>
#include <filesystem>

#include "io/crc32c.h"
#include "io/file.h"

namespace blipft {

namespace {
constexpr int64_t kThreads = 4;
constexpr int64_t kMinChunks = 3;        // one being filled, one in transfer, one being written
}  // namespace

StateWriter::StateWriter(Device& device, int64_t bytes) : device_(device) {
  const int64_t count = std::max(kMinChunks, (bytes + kChunkBytes - 1) / kChunkBytes);
  threads_.emplace_back([this, count] { take_chunks(count); });
  for (int64_t i = 0; i < kThreads; ++i) threads_.emplace_back([this] { run(); });
}

StateWriter::~StateWriter() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// Allocates chunks on a thread, because page-locking takes time for each GiB; one at a time, so that the first are
// ready soon.
void StateWriter::take_chunks(int64_t count) {
  try {
    device_.bind_thread();
    for (int64_t i = 0; i < count; ++i) {
      auto chunk = std::make_unique<Chunk>(Chunk{HostMemory(device_, kChunkBytes), {}, {}});
      const std::lock_guard lock(mutex_);
      if (ends_) return;
      chunk->copied = device_.create_event();
      free_.push_back(chunk.get());
      chunks_.push_back(std::move(chunk));
      changed_.notify_all();
    }
  } catch (...) {                          // the writer continues with the chunks it has
    const std::lock_guard lock(mutex_);
    if (chunks_.empty()) no_memory_ = std::current_exception();
    changed_.notify_all();
  }
}

std::vector<StateWriter::Part> StateWriter::segments_of(const std::vector<const void*>& data) const {
  std::vector<Part> segments;
  for (size_t i = 0; i < file_.pieces.size(); ++i) {
    const io::StatePiece& piece = file_.pieces[i];
    for (int64_t number = 0; number < piece.segments(); ++number) {
      const int64_t begin = number * io::kSegmentBytes;
      segments.push_back({i, number, piece.offset + begin, std::min(io::kSegmentBytes, piece.bytes() - begin),
                          static_cast<const char*>(data[i]) + begin});
    }
  }
  return segments;
}

void StateWriter::begin(const std::string& path, const std::vector<ParameterStore::Part>& parts) {
  const auto start = begun_ = std::chrono::steady_clock::now();
  file_ = {};
  written_.clear();
  file_.name = std::filesystem::path(path).filename().string();
  std::map<std::string, const void*> memory;  // lay_out() reorders pieces; each tensor has one piece here
  for (const ParameterStore::Part& part : parts) {
    file_.pieces.push_back({.tensor = part.key(), .dtype = part.data.dtype, .shape = part.shape, .first = part.first,
                            .count = part.data.numel(), .offset = 0, .checksums = {}});
    BLIPFT_CHECK(memory.emplace(part.key(), part.data.data).second, part.key(), " comes twice");
  }
  const std::string header = io::lay_out(file_);
  std::vector<const void*> data;
  for (const io::StatePiece& piece : file_.pieces) data.push_back(memory.at(piece.tensor));
  path_ = path;
  target_ = std::make_unique<io::FileDescriptor>(io::create_file(path));
  io::write_at(*target_, 0, header.data(), static_cast<int64_t>(header.size()), path);
  set_complete(false);
  try {
    copy(segments_of(data));
  } catch (...) {
    set_complete(true);                    // the threads must not wait for more chunks
    throw;
  }
  set_complete(true);
  pause_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Copies segments to chunks. Chunks are filled completely, so that their number is minimal: a segment may continue in
// the next chunk.
void StateWriter::copy(const std::vector<Part>& segments) {
  const Stream stream = device_.copy_stream();
  Chunk* chunk = nullptr;
  for (Part left : segments) {
    while (left.bytes > 0) {
      if (!chunk && !(chunk = free_chunk())) return device_.synchronize(stream);  // writing failed
      Part part = left;
      part.at = chunk->used;
      part.bytes = std::min(left.bytes, kChunkBytes - chunk->used);
      device_.copy(chunk->memory.get() + part.at, part.source, part.bytes, stream);
      chunk->parts.push_back(part);
      chunk->used += part.bytes;
      left.offset += part.bytes, left.source += part.bytes, left.bytes -= part.bytes;
      if (chunk->used == kChunkBytes) send(std::exchange(chunk, nullptr));
    }
  }
  if (chunk) send(chunk);
  device_.synchronize(stream);
}

void StateWriter::set_complete(bool complete) {
  {
    const std::lock_guard lock(mutex_);
    complete_ = complete;
    if (!complete) synced_ = false;
  }
  changed_.notify_all();
}

StateWriter::Chunk* StateWriter::free_chunk() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return error_ || no_memory_ || !free_.empty(); });
  if (!error_) error_ = no_memory_;
  if (error_) return nullptr;
  Chunk* chunk = free_.back();
  free_.pop_back();
  chunk->parts.clear();
  chunk->used = 0;
  return chunk;
}

void StateWriter::send(Chunk* chunk) {
  device_.record(chunk->copied, device_.copy_stream());
  const std::lock_guard lock(mutex_);
  full_.push_back(chunk);
  changed_.notify_all();
}

void StateWriter::run() {
  const std::exception_ptr unbound = [&]() -> std::exception_ptr {
    try {
      device_.bind_thread();
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }();
  std::unique_lock lock(mutex_);
  if (unbound) error_ = unbound;
  for (;;) {
    changed_.wait(lock, [this] {
      return !full_.empty() || (complete_ && !synced_ && writing_ == 0) || (ends_ && complete_ && synced_);
    });
    if (full_.empty() && synced_) return;
    Chunk* chunk = full_.empty() ? nullptr : full_.front();
    if (chunk) full_.pop_front();
    ++writing_;
    const bool works = !error_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      if (chunk && works) write(*chunk);
      if (!chunk && works) io::sync_file(*target_, path_);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    --writing_;
    if (failure && !error_) error_ = failure;
    if (chunk) {
      free_.push_back(chunk);
    } else {
      synced_ = true;
      write_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
    }
    changed_.notify_all();
  }
}

void StateWriter::write(Chunk& chunk) {
  device_.synchronize(chunk.copied);
  for (Part& part : chunk.parts) {
    const char* data = chunk.memory.get() + part.at;
    part.checksum = io::crc32c(data, part.bytes);
    io::write_at(*target_, part.offset, data, part.bytes, path_);
  }
  const std::lock_guard lock(mutex_);
  written_.insert(written_.end(), chunk.parts.begin(), chunk.parts.end());
}

void StateWriter::join_checksums() {
  std::sort(written_.begin(), written_.end(), [](const Part& a, const Part& b) { return a.offset < b.offset; });
  for (const Part& part : written_) {
    uint32_t& sum = file_.pieces[part.piece].checksums[static_cast<size_t>(part.number)];
    sum = io::crc32c_joined(sum, part.checksum, part.bytes);
  }
}

bool StateWriter::busy() const {
  const std::lock_guard lock(mutex_);
  return !synced_;
}

io::StateFile StateWriter::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return synced_; });
  target_.reset();
  if (const std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  join_checksums();
  return file_;
}

}  // namespace blipft
