// Reads the tensors of a model directory: one safetensors file, or an index and its shards.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "blipft/checkpoint.h"
#include "blipft/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors_header.h"

namespace blipft {

namespace fs = std::filesystem;
using nlohmann::json;

int64_t StoredTensor::numel() const { return io::checked_numel(shape, file); }

struct SafetensorsReader::Files {
  struct Open {
    io::FileDescriptor file;
    struct stat status {};                 // state of the file when it was opened
  };
  std::map<std::string, Open> by_path;
  const Open& at(const std::string& path) const { return by_path.at(path); }
};

namespace {

struct stat status_of(const io::FileDescriptor& file, const std::string& path) {
  struct stat status {};
  BLIPFT_USER_CHECK(::fstat(file.get(), &status) == 0, path, ": cannot be examined: ", io::errno_text());
  return status;
}

/// Returns {tensor name: shard file name} from the index.
std::map<std::string, std::string> read_weight_map(const std::string& index_path) {
  const json index = io::read_json_file(index_path);
  BLIPFT_USER_CHECK(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(), index_path,
                    ": has no object 'weight_map' from tensor names to files");
  std::map<std::string, std::string> shards;
  for (const auto& [name, value] : index["weight_map"].items()) {
    BLIPFT_USER_CHECK(value.is_string(), index_path, ": weight_map gives ", io::brief(value), " for tensor '",
                      brief(name),
                      "', expected a file name");
    const std::string shard = value.get<std::string>();
    // An index must not refer to files outside its own folder.
    BLIPFT_USER_CHECK(!shard.empty() && shard.find('/') == std::string::npos && shard != "..", index_path,
                      ": weight_map gives the file '", brief(shard), "' for tensor '", brief(name),
                      "', expected a file name in the same folder");
    shards[name] = shard;
  }
  return shards;
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string what_is_there(const std::string& directory, const std::string& stem) {
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (status.type() == fs::file_type::not_found) return "the folder does not exist";
  if (status.type() != fs::file_type::directory) return error ? error.message() : "it is not a folder";
  fs::directory_iterator(directory, error);
  if (error) return "the folder cannot be read: " + error.message();
  for (const char* old : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (fs::exists(fs::path(directory) / old, error))
      return concat("only '", old, "' is there; make safetensors of it, without running code from the file, with\n  ",
                    "python3 tools/convert_checkpoint.py ", without_slash(directory), " ", without_slash(directory),
                    "-safetensors");
  return concat("the folder holds neither", stem != "model" ? "" :
                "; download the weights into it, or begin with new ones: model.init=random");
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& model_directory, const std::string& stem)
    : files_(std::make_unique<Files>()) {
  const std::string single_name = stem + ".safetensors", index_name = single_name + ".index.json";
  const std::string single = (fs::path(model_directory) / single_name).string();
  const std::string index = (fs::path(model_directory) / index_name).string();
  const auto open_shard = [&](const std::string& path) {
    io::FileDescriptor file = io::open_for_reading(path);
    // Weights are read from front to back, so request long read-ahead.
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    auto tensors = io::read_safetensors_header(file, path);
    const struct stat status = status_of(file, path);
    files_->by_path.emplace(path, Files::Open{std::move(file), status});
    return tensors;
  };
  // If both exist, the single file has priority, as in transformers.
  std::error_code ignored;
  if (fs::exists(single, ignored)) {
    tensors_ = open_shard(single);
    return;
  }
  BLIPFT_USER_CHECK(fs::exists(index, ignored), model_directory, ": expected ", single_name, " or ", index_name,
                    ", but ", what_is_there(model_directory, stem));

  const std::map<std::string, std::string> weight_map = read_weight_map(index);
  std::map<std::string, std::map<std::string, StoredTensor>> opened;
  for (const auto& [name, shard] : weight_map) {
    const std::string path = (fs::path(model_directory) / shard).string();
    if (!opened.count(shard)) {
      BLIPFT_USER_CHECK(fs::exists(path, ignored), path, ": the shard is missing, but ", index, " puts tensor '",
                        brief(name),
                        "' into it; copy or download it");
      opened[shard] = open_shard(path);
    }
    const auto& tensors = opened[shard];
    const auto found = tensors.find(name);
    BLIPFT_USER_CHECK(found != tensors.end(), path, ": has no tensor '", brief(name), "', but ", index,
                      " puts it there");
    tensors_[name] = found->second;
  }
  // The index defines which files belong to the model; tensors of these files that it does not list are read as well.
  for (const auto& [shard, tensors] : opened)
    for (const auto& [name, tensor] : tensors) {
      if (weight_map.count(name)) continue;
      const auto [before, added] = tensors_.emplace(name, tensor);
      BLIPFT_USER_CHECK(added, tensor.file, ": tensor '", brief(name), "' is also in ", before->second.file, ", and ",
                        index,
                        " does not say which of them counts; name one in its weight_map");
    }
}

SafetensorsReader::~SafetensorsReader() = default;

void SafetensorsReader::read(const std::string& name, int64_t first, int64_t count, void* out) const {
  const auto found = tensors_.find(name);
  BLIPFT_CHECK(found != tensors_.end(), "no tensor '", name, "' among the ", tensors_.size(), " of this model");
  const StoredTensor& tensor = found->second;
  const int64_t size = tensor.f64 ? 8 : dtype_size(tensor.dtype);
  const int64_t numel = (tensor.end - tensor.begin) / size;
  BLIPFT_CHECK(first >= 0 && count >= 0 && first <= numel && count <= numel - first, "elements [", first, ", ",
               first + count, ") of tensor '", name, "', which has ", numel);
  if (count == 0) return;
  const io::FileDescriptor& file = files_->at(tensor.file).file;
  const std::string what = concat(tensor.file, ": tensor '", name, "'");
  if (!tensor.f64) return io::read_at(file, tensor.begin + first * size, out, count * size, what);
  constexpr int64_t kPiece = int64_t{1} << 16;
  std::vector<double> piece(static_cast<size_t>(std::min(count, kPiece)));
  float* rounded = static_cast<float*>(out);
  for (int64_t done = 0; done < count; done += kPiece) {
    const int64_t part = std::min(kPiece, count - done);
    io::read_at(file, tensor.begin + (first + done) * size, piece.data(), part * size, what);
    for (int64_t i = 0; i < part; ++i) *rounded++ = static_cast<float>(piece[static_cast<size_t>(i)]);
  }
}

std::map<std::string, int64_t> SafetensorsReader::files() const {
  std::map<std::string, int64_t> files;
  for (const auto& [path, open] : files_->by_path) files[path] = open.status.st_size;
  return files;
}

void SafetensorsReader::read_file(const std::string& path, int64_t offset, int64_t bytes, void* out) const {
  io::read_at(files_->at(path).file, offset, out, bytes, path);
}

// The identity includes the time of the last status change (st_ctim), because programs cannot set it and copies do not
// preserve it.
std::string SafetensorsReader::identity(const std::string& path) const {
  const struct stat& status = files_->at(path).status;
  return concat(status.st_ino, " ", status.st_size, " ", status.st_mtim.tv_sec, ".", status.st_mtim.tv_nsec, " ",
                status.st_ctim.tv_sec, ".", status.st_ctim.tv_nsec);
}

void SafetensorsReader::check_unchanged(const std::string& path) const {
  const auto& [file, before] = files_->at(path);
  const struct stat now = status_of(file, path);
  BLIPFT_USER_CHECK(now.st_size == before.st_size && now.st_mtim.tv_sec == before.st_mtim.tv_sec &&
                        now.st_mtim.tv_nsec == before.st_mtim.tv_nsec,
                    path, ": was written to while the run began with it; start the run again when it is whole");
}

}  // namespace blipft
