// The writer of a model directory. All files are written to `directory`.partial, which finally becomes `directory`.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iomanip>
#include <mutex>
#include <unordered_map>

#include "base/memory_text.h"
#include "blipft/checkpoint.h"
#include "blipft/error.h"
#include "io/file.h"
#include "io/marker.h"
#include "io/paths.h"
#include "io/safetensors_header.h"
#include "io/saved_model.h"

namespace blipft {

namespace fs = std::filesystem;

namespace {

/// The set of bytes written so far, as disjoint intervals {begin: end}.
class Coverage {
 public:
  void add(int64_t begin, int64_t end) {
    auto next = intervals_.upper_bound(begin);
    if (next != intervals_.begin() && std::prev(next)->second >= begin) --next;
    while (next != intervals_.end() && next->first <= end) {
      begin = std::min(begin, next->first);
      end = std::max(end, next->second);
      next = intervals_.erase(next);
    }
    intervals_[begin] = end;
  }
  /// Returns the first byte in [0, size) that is not covered, or `size` if all bytes are covered.
  int64_t first_gap(int64_t size) const {
    if (size == 0 || intervals_.empty() || intervals_.begin()->first > 0) return 0;
    return std::min(size, intervals_.begin()->second);
  }

 private:
  std::map<int64_t, int64_t> intervals_;
};

struct Target {
  size_t shard = 0;
  int64_t offset = 0, bytes = 0;  // offset from the start of the file
  int64_t element_size = 1;
  Coverage written;
};

struct Shard {
  std::string file_name;
  io::FileDescriptor file;
  std::vector<io::HeaderEntry> entries;
  int64_t bytes = 0;              // bytes of all tensors
};

/// Splits the declared entries, in their order, into shards, and sets the offsets of the tensors in each shard's data.
std::vector<Shard> cut_into_shards(const std::vector<CheckpointWriter::Entry>& entries, int64_t shard_bytes,
                                   const std::string& stem) {
  std::vector<Shard> shards(1);
  for (const CheckpointWriter::Entry& entry : entries) {
    const int64_t bytes = io::checked_numel(entry.shape, concat("tensor '", entry.name, "'")) * dtype_size(entry.dtype);
    if (!shards.back().entries.empty() && shards.back().bytes + bytes > shard_bytes) shards.emplace_back();
    shards.back().entries.push_back({entry.name, entry.dtype, entry.shape, 0, bytes});
    shards.back().bytes += bytes;
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    Shard& shard = shards[i];
    std::ostringstream name;
    name << stem << "-" << std::setfill('0') << std::setw(5) << i + 1 << "-of-" << std::setw(5) << shards.size()
         << ".safetensors";
    shard.file_name = shards.size() == 1 ? stem + ".safetensors" : name.str();
    // Tensors with larger elements come first, so that every tensor is aligned to its element size.
    std::stable_sort(shard.entries.begin(), shard.entries.end(),
                     [](const auto& a, const auto& b) { return dtype_size(a.dtype) > dtype_size(b.dtype); });
    int64_t offset = 0;
    for (io::HeaderEntry& entry : shard.entries) {
      const int64_t bytes = entry.end;
      entry.begin = offset;
      entry.end = offset += bytes;
    }
  }
  return shards;
}

void check_room(const std::string& directory, int64_t needed) {
  const int64_t available = io::free_bytes(directory);
  BLIPFT_USER_CHECK(needed <= available, directory, ": the model needs ", memory_text(needed),
                    ", but the disk has only ", memory_text(available), " free; free some or choose another disk");
}

}  // namespace

struct CheckpointWriter::State {
  std::string directory, partial, stem;
  io::Marker marker;               // marker.files lists the files written so far; finish() adds the tensor files
  std::vector<Shard> shards;
  std::unordered_map<std::string, Target> targets;
  std::mutex mutex;                // guards every Target::written
  bool made_partial = false, finished = false;

  void open_shards();
  std::string index_text() const;
  void move_into_place();
  void discard() const;
  std::string plain_path(const std::string& name) const;
};

void CheckpointWriter::State::open_shards() {
  for (size_t i = 0; i < shards.size(); ++i) {
    Shard& shard = shards[i];
    const std::string path = (fs::path(partial) / shard.file_name).string();
    const std::string header = io::make_safetensors_header(shard.entries);
    BLIPFT_USER_CHECK(static_cast<int64_t>(header.size()) <= io::max_header_bytes, path, ": ", shard.entries.size(),
                      " tensors need a header of ", header.size(), " bytes, the format allows ", io::max_header_bytes);
    const auto data_begin = static_cast<int64_t>(header.size());
    shard.file = io::create_file(path);
    BLIPFT_USER_CHECK(::ftruncate(shard.file.get(), data_begin + shard.bytes) == 0, path, ": cannot be given ",
                      data_begin + shard.bytes, " bytes: ", io::errno_text());
    io::write_at(shard.file, 0, header.data(), data_begin, path);
    for (const io::HeaderEntry& entry : shard.entries) {
      Target target{i, data_begin + entry.begin, entry.end - entry.begin, dtype_size(entry.dtype), {}};
      BLIPFT_CHECK(targets.emplace(entry.name, std::move(target)).second, "tensor '", entry.name,
                   "' is declared twice");
    }
  }
}

std::string CheckpointWriter::State::index_text() const {
  int64_t total = 0;
  std::map<std::string, std::string> file_of;
  for (const Shard& shard : shards) {
    total += shard.bytes;
    for (const io::HeaderEntry& entry : shard.entries) file_of[entry.name] = shard.file_name;
  }
  std::string text = concat("{\n  \"metadata\": {\n    \"total_size\": ", total, "\n  },\n  \"weight_map\": {");
  const char* separator = "\n    ";
  for (const auto& [name, file] : file_of) {
    text += concat(separator, io::json_quoted(name), ": ", io::json_quoted(file));
    separator = ",\n    ";
  }
  return text + "\n  }\n}\n";
}

void CheckpointWriter::State::move_into_place() {
  directory = io::replace_saved(directory);
  finished = true;
}

// Removes the files that were written so far.
void CheckpointWriter::State::discard() const {
  try {
    io::remove_saved(partial);
  } catch (const UserError&) {
    // The partial folder stays; the next saving tries to remove it again.
  }
}

std::string CheckpointWriter::State::plain_path(const std::string& name) const {
  BLIPFT_CHECK(!finished, "file '", name, "' comes after finish()");
  const fs::path path(name);
  const auto plain = [](const std::string& part) { return !part.empty() && part != "." && part != ".."; };
  BLIPFT_CHECK(plain(path.filename().string()) && path.is_relative() && !path.parent_path().has_parent_path() &&
                   (!path.has_parent_path() || plain(path.parent_path().string())),
               "'", name, "' is not a plain file name, nor one in a folder");
  BLIPFT_CHECK(!name.ends_with(".safetensors") && name != stem + ".safetensors.index.json", "'", name,
               "' belongs to the tensors");
  return (fs::path(partial) / name).string();
}

CheckpointWriter::CheckpointWriter(const std::string& directory, const std::vector<Entry>& entries,
                                   int64_t shard_bytes, const std::string& stem, const ModelOrigin& origin) {
  BLIPFT_USER_CHECK(!directory.empty(), "the folder for the saved model has an empty name");
  BLIPFT_CHECK(shard_bytes > 0, "shards of ", shard_bytes, " bytes");
  auto state = std::make_unique<State>();
  state->directory = io::absolute_path(directory);
  state->partial = state->directory + ".partial";
  state->stem = stem;
  state->marker = {stem == "model" ? io::Marker::kModel : io::Marker::kAdapter, origin.run_id, origin.step, {}};
  io::check_saving(state->directory);
  state->shards = cut_into_shards(entries, shard_bytes, stem);
  int64_t total = kSmallFilesBytes;
  for (const Shard& shard : state->shards) total += shard.bytes;

  std::error_code error;
  io::remove_saved(state->partial);        // remains of an earlier run that was killed
  fs::create_directories(state->partial, error);
  BLIPFT_USER_CHECK(!error, state->partial, ": the folder cannot be created: ", error.message(),
                    io::creation_advice(error.value()));
  state->made_partial = true;
  state_ = std::move(state);
  try {
    check_room(state_->partial, total);
    io::write_marker(state_->partial, state_->marker);
    state_->open_shards();
  } catch (...) {
    // The destructor does not run if the constructor throws.
    state_->discard();
    throw;
  }
}

CheckpointWriter::~CheckpointWriter() {
  if (!state_ || state_->finished || !state_->made_partial) return;
  state_->discard();
}

void CheckpointWriter::write(const std::string& name, int64_t first, int64_t count, const void* data) {
  const auto found = state_->targets.find(name);
  BLIPFT_CHECK(found != state_->targets.end(), "tensor '", name, "' was not declared");
  BLIPFT_CHECK(!state_->finished, "tensor '", name, "' is written after finish()");
  Target& target = found->second;
  const int64_t numel = target.bytes / target.element_size;
  BLIPFT_CHECK(first >= 0 && count >= 0 && first <= numel && count <= numel - first, "elements [", first, ", ",
               first + count, ") of tensor '", name, "', which has ", numel);
  if (count == 0) return;
  const Shard& shard = state_->shards[target.shard];
  const int64_t begin = first * target.element_size, bytes = count * target.element_size;
  io::write_at(shard.file, target.offset + begin, data, bytes,
               concat((fs::path(state_->partial) / shard.file_name).string(), ": tensor '", name, "'"));
  const std::lock_guard lock(state_->mutex);
  target.written.add(begin, begin + bytes);
}

void CheckpointWriter::copy_files(const std::string& source, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string to = state_->plain_path(name);
    const fs::path from = fs::path(source) / name;
    std::error_code error;
    if (!fs::is_regular_file(from, error)) continue;
    if (const fs::path folder = fs::path(to).parent_path(); !fs::is_directory(folder, error))
      BLIPFT_USER_CHECK(fs::create_directory(folder, error), folder.string(), ": cannot be made: ", error.message(),
                        io::creation_advice(error.value()));
    fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
    BLIPFT_USER_CHECK(!error, from.string(), ": cannot be copied to ", to, ": ", error.message(),
                      io::creation_advice(error.value()));
    fs::permissions(to, fs::perms::owner_read | fs::perms::owner_write, fs::perm_options::add, error);
    state_->marker.files.push_back(name);
  }
}

void CheckpointWriter::write_text(const std::string& name, const std::string& text) {
  const std::string path = state_->plain_path(name);
  const io::FileDescriptor file = io::create_file(path);
  io::write_at(file, 0, text.data(), static_cast<int64_t>(text.size()), path);
  state_->marker.files.push_back(name);
}

std::string CheckpointWriter::finish() {
  BLIPFT_CHECK(!state_->finished, "finish() was called before");
  for (const Shard& shard : state_->shards)
    for (const io::HeaderEntry& entry : shard.entries) {
      const Target& target = state_->targets.at(entry.name);
      const int64_t gap = target.written.first_gap(target.bytes);
      BLIPFT_CHECK(gap == target.bytes, "tensor '", entry.name, "' of ", state_->directory,
                   " is not wholly written: element ", gap / target.element_size, " of ",
                   target.bytes / target.element_size, " is missing");
    }
  if (state_->shards.size() > 1) {
    const std::string path = (fs::path(state_->partial) / (state_->stem + ".safetensors.index.json")).string();
    const std::string text = state_->index_text();
    const io::FileDescriptor file = io::create_file(path);
    io::write_at(file, 0, text.data(), static_cast<int64_t>(text.size()), path);
    state_->marker.files.push_back(fs::path(path).filename().string());
  }
  for (Shard& shard : state_->shards) {
    state_->marker.files.push_back(shard.file_name);
    io::sync_file(shard.file, (fs::path(state_->partial) / shard.file_name).string());
    shard.file = io::FileDescriptor();
  }
  std::sort(state_->marker.files.begin(), state_->marker.files.end());
  io::write_marker(state_->partial, state_->marker);
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(state_->partial, error)) {
    if (entry.path().extension() == ".safetensors") continue;
    const std::string path = entry.path().string();
    if (entry.is_directory()) io::sync_directory(path);
    else io::sync_file(io::open_for_reading(path), path);
  }
  BLIPFT_USER_CHECK(!error, state_->partial, ": cannot be read: ", error.message());
  io::sync_directory(state_->partial);
  state_->move_into_place();
  return state_->directory;
}

}  // namespace blipft
