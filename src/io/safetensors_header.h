// The header of a safetensors file. The file starts with a little-endian length of 8 bytes. Then comes JSON with the
// dtype, shape and offsets of every tensor, then the bytes of all tensors without holes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "blipft/checkpoint.h"
#include "io/file.h"

namespace blipft::io {

/// Maximum size of a header, from the format's definition; a file with a larger one is broken.
constexpr int64_t max_header_bytes = 100'000'000;

/// Reads and checks the header of an open file. Throws UserError naming the file and the tensor.
std::map<std::string, StoredTensor> read_safetensors_header(const FileDescriptor& file, const std::string& path);

/// A tensor to be written: bytes [begin, end) after the header.
struct HeaderEntry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;
};
/// Returns the length field and the JSON, padded with spaces to a multiple of 8 bytes.
std::string make_safetensors_header(const std::vector<HeaderEntry>& entries);

/// Returns the product of the sizes. Throws UserError if a size is negative or the product does not fit into 63 bits.
int64_t checked_numel(const std::vector<int64_t>& shape, const std::string& what);
/// Returns `text` as a JSON string, quotes included. Throws UserError if it is not UTF-8.
std::string json_quoted(const std::string& text);
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace blipft::io
