// The files of a checkpoint: what they are called, what is where in them, and the index that tells of it.
//
// A checkpoint is a folder step-00000100/. Each rank that holds something writes one safetensors file,
// state-00000-of-00004.safetensors, with its pieces of tensors: "master/model.norm.weight" where the piece is the whole
// tensor, "master/model.norm.weight[0:512]" where it is a range of its elements. checkpoint.json, written last, tells of
// every piece, with checksums, and ends with its own. docs/checkpoints.md describes the format.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "blipft/tensor.h"

namespace blipft::io {

/// Elements of a piece are checked in segments of so many bytes, each with a checksum of its own.
constexpr int64_t kSegmentBytes = int64_t{32} << 20;

/// The version of the layout in which models declare their parameters: names, shapes and the order of elements. Raise it
/// when the layout of an existing family changes: checkpoints hold parameters in this layout.
constexpr int64_t kParameterLayout = 1;

struct StatePiece {
  std::string tensor;                      ///< "exp_avg/model.norm.weight"
  DType dtype = DType::f32;
  std::vector<int64_t> shape;              ///< of the whole tensor
  int64_t first = 0, count = 0;            ///< elements
  int64_t offset = 0;                      ///< bytes, from the file's start
  std::vector<uint32_t> checksums;         ///< CRC-32C of each segment
  int64_t bytes() const { return count * dtype_size(dtype); }
  int64_t segments() const { return (bytes() + kSegmentBytes - 1) / kSegmentBytes; }
};

struct StateFile {
  std::string name;
  int64_t bytes = 0;
  std::vector<StatePiece> pieces;
};

struct StateIndex {
  int64_t step = 0;                        ///< steps that were done
  std::vector<std::pair<std::string, std::string>> config;  ///< every key and its value
  std::map<std::string, std::string> run;  ///< what else is known of the run: "ranks", "strategy", ...
  std::vector<StateFile> files;
};

std::string state_file_name(int64_t rank, int64_t ranks);
std::string checkpoint_name(int64_t step);
/// The step of a checkpoint folder's name; -1: it is none.
int64_t checkpoint_step(const std::string& name);

/// Gives the pieces of `file` their places. Returns the safetensors header, which comes first.
std::string lay_out(StateFile& file);

/// checkpoint.json, whose last line has the checksum of the text before it.
std::string index_text(const StateIndex& index);
/// Closes a JSON object, `text` but for its bracket, with that line.
std::string with_checksum(const std::string& text);
/// The same for one file, to be sent to the rank that writes the index.
std::string file_text(const StateFile& file);
StateFile parse_file(const std::string& text);
/// Throws Error unless the pieces of all files are `bytes` together, and none overlaps another.
void check_whole(const StateIndex& index, int64_t bytes);
/// The index of the checkpoint in `folder`, which is whole as far as file sizes tell. Throws UserError naming the file,
/// what was found and expected.
StateIndex read_index(const std::string& folder);
/// Writes `text` to `path` and waits until it is on the disk.
void write_whole_file(const std::string& path, const std::string& text);

}  // namespace blipft::io
