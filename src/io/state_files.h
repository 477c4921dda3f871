// The files of a checkpoint: their names, the layout of each file, and the index that describes them.
//
// A checkpoint is a folder step-00000100/. Each rank that holds part of the state writes one safetensors file,
// state-00000-of-00004.safetensors, with its pieces of tensors. A piece is named "master/model.norm.weight" if it is
// the whole tensor, and "master/model.norm.weight[0:512]" if it is a range of elements. checkpoint.json is written
// last. It lists every piece with checksums, and ends with its own checksum. docs/checkpoints.md describes the format.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "blipft/tensor.h"

namespace blipft::io {

/// Bytes of a segment. A piece is divided into segments, each with its own checksum.
constexpr int64_t kSegmentBytes = int64_t{32} << 20;

/// The version of the layout in which models declare their parameters: names, shapes and the order of elements. Raise it
/// when the layout of an existing family changes: checkpoints hold parameters in this layout.
constexpr int64_t kParameterLayout = 1;

struct StatePiece {
  std::string tensor;                      ///< "exp_avg/model.norm.weight"
  DType dtype = DType::f32;
  std::vector<int64_t> shape;              ///< shape of the whole tensor
  int64_t first = 0, count = 0;            ///< element range of the piece
  int64_t offset = 0;                      ///< in bytes, from the start of the file
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
  int64_t step = 0;                        ///< number of completed steps
  std::vector<std::pair<std::string, std::string>> config;  ///< every key and its value
  std::map<std::string, std::string> run;  ///< other facts about the run: "ranks", "strategy", ...
  std::vector<StateFile> files;
};

std::string state_file_name(int64_t rank, int64_t ranks);
std::string checkpoint_name(int64_t step);
/// Returns the step of a checkpoint folder's name, or -1 if the name is not a checkpoint's.
int64_t checkpoint_step(const std::string& name);

/// Sets the offsets of the pieces of `file`. Returns the safetensors header, which comes first in the file.
std::string lay_out(StateFile& file);

/// Returns checkpoint.json, whose last line contains the checksum of the text before it.
std::string index_text(const StateIndex& index);
/// Completes a JSON object: appends the checksum line and the closing bracket to `text`.
std::string with_checksum(const std::string& text);
/// Returns the description of one file, to be sent to the rank that writes the index.
std::string file_text(const StateFile& file);
StateFile parse_file(const std::string& text);
/// Throws Error unless the pieces of all files have `bytes` bytes in total and no two pieces overlap.
void check_whole(const StateIndex& index, int64_t bytes);
/// Reads the index of the checkpoint in `folder` and checks that all files have the expected size. Throws UserError
/// naming the file, what was found and expected.
StateIndex read_index(const std::string& folder);
/// Writes `text` to `path` and waits until it is on the disk.
void write_whole_file(const std::string& path, const std::string& text);

}  // namespace blipft::io
