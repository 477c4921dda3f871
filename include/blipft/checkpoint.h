// Checkpoint: model directories in Hugging Face form (config.json, safetensors with or without index, tokenizer and
// preprocessor files), read in slices and written whole or not at all.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "blipft/tensor.h"

namespace blipft {

/// The position of a tensor's bytes in a file.
struct StoredTensor {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;                ///< as stored; may have more than four dimensions
  std::string file;
  int64_t begin = 0, end = 0;                ///< bytes, from the file's start
  bool f64 = false;                          ///< the file has 64-bit numbers, which read() rounds to dtype, f32
  int64_t numel() const;
};

/// The tensors of model.safetensors, or of the shards that model.safetensors.index.json names, whether or not it lists
/// each of their tensors; with another stem than "model" ("adapter_model") of the files so named. Headers are read and checked
/// at once (sizes, offsets, overlap, file length); tensor bytes only on request. Thread-safe.
class SafetensorsReader {
 public:
  /// Throws UserError naming the file (and tensor) that is missing, truncated or malformed.
  explicit SafetensorsReader(const std::string& model_directory, const std::string& stem = "model");
  ~SafetensorsReader();
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  /// Copies `count` elements of `name`, from element `first` on, as stored (no conversion), into `out`.
  void read(const std::string& name, int64_t first, int64_t count, void* out) const;

  /// Paths of the files, and their bytes when they were opened.
  std::map<std::string, int64_t> files() const;
  /// Copies bytes of a file from `offset` on.
  void read_file(const std::string& path, int64_t offset, int64_t bytes, void* out) const;
  /// Returns a text that identifies the file as it was opened. Equal texts mean the very same file, unchanged, even if
  /// another machine that shares its file system opened it. A copy of the file has a different text.
  std::string identity(const std::string& path) const;
  /// Throws UserError when the file was written to since it was opened.
  void check_unchanged(const std::string& path) const;

 private:
  std::map<std::string, StoredTensor> tensors_;
  struct Files;
  std::unique_ptr<Files> files_;
};

/// Room that config.json, tokenizer and index take at most beside the tensors.
constexpr int64_t kSmallFilesBytes = int64_t{32} << 20;

/// Which run a model is of, and after how many steps; noted in the folder's marker (io/marker.h).
struct ModelOrigin {
  std::string run_id;                        ///< "": not known
  int64_t step = -1;                         ///< -1: not known
};

/// Writes a model directory: tensors in the order they come, shards of at most `shard_bytes`, an index when there is
/// more than one shard. Everything goes to `directory`.partial and gets its final name in finish(); a writer that is
/// destroyed before removes what it wrote.
class CheckpointWriter {
 public:
  struct Entry {
    std::string name;
    DType dtype = DType::f32;
    std::vector<int64_t> shape;
  };
  /// All tensors are declared at once, so that headers are written first. Throws UserError when the folder cannot be
  /// written or the disk has too little room.
  CheckpointWriter(const std::string& directory, const std::vector<Entry>& entries,
                   int64_t shard_bytes = int64_t{5} << 30, const std::string& stem = "model",
                   const ModelOrigin& origin = {});
  ~CheckpointWriter();
  /// The bytes [first, first + count) elements of `name`, host memory, any order.
  void write(const std::string& name, int64_t first, int64_t count, const void* data);
  /// Copies files (config.json, tokenizer, preprocessor, generation config, ...; those that exist) from `source`.
  void copy_files(const std::string& source, const std::vector<std::string>& names);
  void write_text(const std::string& name, const std::string& text);
  /// Flushes and renames into place, replacing an older model of that name. Returns the path of the model: if something that
  /// is not a model of this program has taken the name, that stays, and the model gets the first free name of directory-2,
  /// directory-3, ... Throws when a byte was never written.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Reads a whole text file; UserError naming it when that fails, or when it has more than `max_bytes`.
std::string read_text_file(const std::string& path, int64_t max_bytes = int64_t{64} << 20);

}  // namespace blipft
