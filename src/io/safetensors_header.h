// The header of a safetensors file: 8 bytes of little-endian length, then JSON that says for every tensor its dtype,
// shape and place, then the tensors' bytes without holes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "blipft/checkpoint.h"
#include "io/file.h"

namespace blipft::io {

/// A file whose header says more than this is broken (the format's own limit).
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
/// The length field and the JSON, padded with spaces to a multiple of 8 bytes.
std::string make_safetensors_header(const std::vector<HeaderEntry>& entries);

/// Product of the sizes; throws UserError when one is negative or the product does not fit into 63 bits.
int64_t checked_numel(const std::vector<int64_t>& shape, const std::string& what);
/// `text` as a JSON string, quotes included; UserError when it is not UTF-8.
std::string json_quoted(const std::string& text);
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace blipft::io
