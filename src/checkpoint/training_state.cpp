// Distribution of the state over ranks, and its restoring; see training_state.h.
#include "checkpoint/training_state.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "io/crc32c.h"
#include "io/file.h"
#include "ops/host_memory.h"

namespace blipft {

namespace {

using Part = ParameterStore::Part;

std::vector<Part> all_parts(const Units& units, const ParameterStore& store) {
  std::vector<Part> parts;
  for (const Unit* unit : units)
    for (Part& part : store.parts(*unit)) parts.push_back(std::move(part));
  return parts;
}

// A segment of a piece in a file, and the destination of the bytes that this rank holds.
struct Read {
  const io::StateFile* file;
  const io::StatePiece* piece;
  int64_t number;                          // index of the segment in its piece
  int64_t from, bytes;                     // range in the segment
  char* to;
};

// Collects the reads that fill parts.
class Reads {
 public:
  Reads(const io::StateIndex& index, const std::string& folder) : folder_(folder) {
    for (const io::StateFile& file : index.files)
      for (const io::StatePiece& piece : file.pieces) pieces_[piece.tensor].push_back({&file, &piece});
    for (auto& [name, of] : pieces_)
      std::sort(of.begin(), of.end(), [](const auto& a, const auto& b) { return a.second->first < b.second->first; });
  }

  void add(const Part& part) {
    const std::string key = part.key();
    const auto found = pieces_.find(key);
    BLIPFT_USER_CHECK(found != pieces_.end(), folder_, ": the checkpoint has no tensor ", key,
                      "; it is of another run, or damaged");
    int64_t at = part.first;               // first element without a read
    const int64_t end = part.first + part.data.numel();
    for (const auto& [file, piece] : found->second) {
      BLIPFT_USER_CHECK(piece->dtype == part.data.dtype && piece->shape == part.shape, folder_, "/", file->name, ": ",
                        key, " is ", dtype_name(piece->dtype), " of ", piece->shape.size(),
                        " dimension(s), this run has ", dtype_name(part.data.dtype), " of another shape or type");
      if (piece->first > at) break;
      const int64_t last = std::min(end, piece->first + piece->count);
      if (last <= at) continue;
      add_range(*file, *piece, part, at, last);
      at = last;
    }
    BLIPFT_USER_CHECK(at == end, folder_, ": the checkpoint lacks elements ", at, " to ", end, " of ", key,
                      "; it is damaged: remove it, and resume from another");
  }

  const std::vector<Read>& all() const { return reads_; }
  void clear() { reads_.clear(); }

 private:
  void add_range(const io::StateFile& file, const io::StatePiece& piece, const Part& part, int64_t first,
                 int64_t last) {
    const int64_t size = dtype_size(piece.dtype);
    int64_t begin = (first - piece.first) * size;  // byte offset in the piece
    const int64_t end = (last - piece.first) * size;
    char* to = static_cast<char*>(part.data.data) + (first - part.first) * size;
    while (begin < end) {
      const int64_t number = begin / io::kSegmentBytes;
      const int64_t bytes = std::min(end, (number + 1) * io::kSegmentBytes) - begin;
      reads_.push_back({.file = &file, .piece = &piece, .number = number, .from = begin - number * io::kSegmentBytes,
                        .bytes = bytes, .to = to});
      begin += bytes;
      to += bytes;
    }
  }

  std::string folder_;
  std::map<std::string, std::vector<std::pair<const io::StateFile*, const io::StatePiece*>>> pieces_;
  std::vector<Read> reads_;
};

void read_segment(const std::string& folder, const io::FileDescriptor& file, const Read& read, char* buffer) {
  const io::StatePiece& piece = *read.piece;
  const int64_t begin = read.number * io::kSegmentBytes, bytes = std::min(io::kSegmentBytes, piece.bytes() - begin);
  const std::string what = concat(folder, "/", read.file->name, ": ", piece.tensor);
  io::read_at(file, piece.offset + begin, buffer, bytes, what);
  const uint32_t found = io::crc32c(buffer, bytes), expected = piece.checksums[static_cast<size_t>(read.number)];
  BLIPFT_USER_CHECK(found == expected, what, ": bytes ", piece.offset + begin, " to ", piece.offset + begin + bytes,
                    " have the checksum ", found, ", expected ", expected, "; the checkpoint is damaged: remove ",
                    folder, ", and resume from another");
}

}  // namespace

std::vector<Part> parts_to_write(const Units& units, const ParameterStore& store, int64_t replica, int64_t replicas) {
  std::vector<Part> parts = all_parts(units, store);
  int64_t total = 0, before = 0;
  for (const Part& part : parts) total += part.data.bytes();
  std::erase_if(parts, [&](const Part& part) {
    const double middle = static_cast<double>(before) + 0.5 * static_cast<double>(part.data.bytes());
    before += part.data.bytes();
    const double share = middle * static_cast<double>(replicas) / static_cast<double>(std::max<int64_t>(total, 1));
    return std::min(static_cast<int64_t>(share), replicas - 1) != replica;
  });
  return parts;
}

int64_t held_state_bytes(const Units& units, const ParameterStore& store) {
  int64_t bytes = 0;
  for (const Part& part : all_parts(units, store)) bytes += part.data.bytes();
  return bytes;
}

namespace {

// Executes the reads into device memory, with `threads` threads.
void fill(const WeightContext& context, const Reads& reads, const std::string& folder, int64_t threads) {
  std::map<const io::StateFile*, io::FileDescriptor> files;
  for (const Read& read : reads.all())
    if (!files.count(read.file)) files[read.file] = io::open_for_reading(folder + "/" + read.file->name);
  Device& device = *context.device;
  const Stream stream = device.copy_stream();
  std::atomic<size_t> next{0};
  std::mutex mutex;                        // one thread enqueues at a time
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      device.bind_thread();
      const HostMemory buffer(device, io::kSegmentBytes);
      const Event copied = device.create_event();
      for (size_t i = next++; i < reads.all().size(); i = next++) {
        const Read& read = reads.all()[i];
        read_segment(folder, files.at(read.file), read, buffer.get());
        {
          const std::lock_guard lock(mutex);
          device.copy(read.to, buffer.get() + read.from, read.bytes, stream);
          device.record(copied, stream);
        }
        device.synchronize(copied);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = reads.all().size();
    }
  };
  std::vector<std::thread> workers;
  for (int64_t i = 0; i < std::max<int64_t>(threads, 1); ++i) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

void restore_state(const WeightContext& context, const io::StateIndex& index, const std::string& folder,
                   int64_t threads) {
  Reads reads(index, folder);
  for (const Part& part : all_parts(context.units, *context.store)) reads.add(part);
  fill(context, reads, folder, threads);
  const Stream stream = context.device->copy_stream();
  for (const Unit* unit : context.units)
    if (unit->trainable) context.store->round_masters(*unit, stream);
  context.device->synchronize(stream);
}

void load_trained_weights(const WeightContext& context, const std::string& folder) {
  const io::StateIndex index = io::read_index(folder);
  std::map<std::string, const io::StatePiece*> stored;
  for (const io::StateFile& file : index.files)
    for (const io::StatePiece& piece : file.pieces) stored[piece.tensor] = &piece;
  // Finds the most precise weights: master weights, else weights.
  const auto find = [&](const Parameter& parameter) -> std::pair<std::string, const io::StatePiece*> {
    for (const char* name : {"master", "weight"})
      if (const auto found = stored.find(concat(name, "/", parameter.name)); found != stored.end())
        return {name, found->second};
    return {};
  };
  constexpr int64_t kElements = kPieceBytes / 4;  // a multiple of every format's block
  const Stream stream = context.device->copy_stream();
  Reads reads(index, folder);
  int64_t loaded = 0;
  for (const Unit* unit : context.units)
    context.store->for_each_range(*unit, [&](const Parameter& parameter, int64_t first, int64_t count) {
      const auto [name, piece] = find(parameter);
      if (!piece) return;
      ++loaded;
      for (int64_t at = first; at < first + count; at += kElements) {
        const int64_t n = std::min(kElements, first + count - at);
        const Tensor values{context.scratch.data, piece->dtype, {n}};
        BLIPFT_CHECK(values.bytes() <= context.scratch.bytes(), "scratch of ", context.scratch.bytes(), " bytes");
        reads.clear();
        reads.add({name, &parameter, parameter.shape, at, values});
        fill(context, reads, folder, 1);
        context.store->write(*unit, parameter, at, values, stream);
        context.device->synchronize(stream);
      }
    });
  BLIPFT_USER_CHECK(loaded > 0, folder, ": the checkpoint has no weight of this model; it is of another one");
}

}  // namespace blipft
