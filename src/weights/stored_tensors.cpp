// The stored tensors of parameters; see stored_tensors.h.
#include "weights/stored_tensors.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "blipft/error.h"
#include "ops/bf16.h"

namespace blipft {

namespace {

constexpr int64_t kPieceElements = 2 << 20;

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += concat(i ? ", " : "", shape[i]);
  return text + "]";
}

std::vector<const NamedTensor*> all_stored(const SafetensorsReader& reader, const Parameter& parameter) {
  std::vector<const NamedTensor*> found;
  const auto look = [&](const std::string& name) {
    const auto stored = reader.tensors().find(name);
    if (stored != reader.tensors().end()) found.push_back(&*stored);
  };
  look(parameter.name);
  for (const std::string& alias : parameter.aliases) look(alias);
  return found;
}

float to_float(const char* bytes, DType dtype, int64_t i) {
  if (dtype == DType::f32) {
    float value;
    std::memcpy(&value, bytes + 4 * i, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, bytes + 2 * i, sizeof bits);
  return dtype == DType::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

float rounded(float value, DType dtype) {
  if (dtype == DType::bf16) return bf16_to_float(float_to_bf16(value));
  return dtype == DType::f16 ? f16_to_float(float_to_f16(value)) : value;
}

}  // namespace

bool same_numbers(const SafetensorsReader& reader, const NamedTensor& exact, const SafetensorsReader& others,
                  const NamedTensor& other) {
  const DType from = exact.second.dtype, to = other.second.dtype;
  const int64_t n = exact.second.numel(), step = std::min(n, kPieceElements);
  std::vector<char> left(static_cast<size_t>(step * dtype_size(from)));
  std::vector<char> right(static_cast<size_t>(step * dtype_size(to)));
  for (int64_t first = 0; first < n; first += step) {
    const int64_t count = std::min(step, n - first);
    reader.read(exact.first, first, count, left.data());
    others.read(other.first, first, count, right.data());
    if (from == to && left == right) continue;
    for (int64_t i = 0; i < count; ++i) {
      const float a = rounded(to_float(left.data(), from, i), to), b = to_float(right.data(), to, i);
      if (std::memcmp(&a, &b, sizeof a) != 0) return false;
    }
  }
  return true;
}

// RowOrder permutes rows within a head, so all heads that contain elements of the range are read completely.
void read_parameter(const SafetensorsReader& reader, const NamedTensor& tensor, const Parameter& parameter, int64_t first,
                    int64_t count, void* to) {
  if (!parameter.rows || count == 0) return reader.read(tensor.first, first, count, to);
  const int64_t size = dtype_size(tensor.second.dtype), row = parameter.numel() / parameter.shape[0];
  const int64_t head = parameter.rows.head_size * row, begin = first / head * head;
  const int64_t end = std::min(parameter.numel(), (first + count + head - 1) / head * head);
  std::vector<char> heads(static_cast<size_t>((end - begin) * size));
  reader.read(tensor.first, begin, end - begin, heads.data());
  for (int64_t at = first; at < first + count;) {
    const int64_t n = std::min(first + count, (at / row + 1) * row) - at;
    const int64_t stored = parameter.rows.in_file(at / row) * row + at % row;
    std::memcpy(static_cast<char*>(to) + (at - first) * size, heads.data() + (stored - begin) * size, static_cast<size_t>(n * size));
    at += n;
  }
}

void order_for_files(const Parameter& parameter, int64_t element_size, char* data) {
  if (!parameter.rows) return;
  const auto row = static_cast<size_t>(parameter.numel() / parameter.shape[0] * element_size);
  const std::vector<char> ours(data, data + static_cast<size_t>(parameter.shape[0]) * row);
  for (int64_t r = 0; r < parameter.shape[0]; ++r)
    std::memcpy(data + static_cast<size_t>(parameter.rows.in_file(r)) * row, ours.data() + static_cast<size_t>(r) * row, row);
}

const NamedTensor* find_stored(const SafetensorsReader& reader, const Parameter& parameter) {
  const std::vector<const NamedTensor*> found = all_stored(reader, parameter);
  const auto exact = std::max_element(found.begin(), found.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return dtype_size(a->second.dtype) < dtype_size(b->second.dtype);
  });
  return exact == found.end() ? nullptr : *exact;
}

void check_weights(const Units& units, const SafetensorsReader& reader, Source source) {
  std::string missing;
  int64_t missing_count = 0;
  for (const Unit* unit : units) {
    for (const Parameter& parameter : unit->parameters()) {
      if (parameter.source != source) continue;
      const std::vector<const NamedTensor*> found = all_stored(reader, parameter);
      if (found.empty() && missing_count++ == 0) missing = parameter.name;
      for (const NamedTensor* stored : found) {
        const auto& [name, tensor] = *stored;
        BLIPFT_USER_CHECK(tensor.shape == parameter.shape, tensor.file, ": tensor ", name, ": found shape ",
                          shape_text(tensor.shape), ", expected ", shape_text(parameter.shape), " by ",
                          source == Source::adapter ? "the run file's adapter" : "config.json");
        BLIPFT_USER_CHECK(tensor.dtype == DType::f32 || tensor.dtype == DType::bf16 || tensor.dtype == DType::f16,
                          tensor.file, ": tensor ", name, ": found dtype ", dtype_name(tensor.dtype),
                          ", expected f32, bf16 or f16");
      }
    }
  }
  if (missing_count == 0) return;
  const auto& stored = reader.tensors();
  const std::string file = stored.empty() ? "the checkpoint" : stored.begin()->second.file;
  throw UserError(concat(file, ": tensor ", missing, " is missing",
                         missing_count > 1 ? concat(" (and ", missing_count - 1, " more)") : "",
                         source == Source::adapter ? "; these adapters are others than the run file's section adapter "
                                                     "describes. The file's first tensor is "
                                                   : "; the checkpoint does not belong to this config.json. The file's "
                                                     "first tensor is ",
                         stored.empty() ? "none" : stored.begin()->first));
}

void check_aliases(const Units& units, const SafetensorsReader& reader) {
  for (const Unit* unit : units) {
    for (const Parameter& parameter : unit->parameters()) {
      if (parameter.aliases.empty() || parameter.source != Source::checkpoint) continue;
      const NamedTensor* exact = find_stored(reader, parameter);
      for (const NamedTensor* other : all_stored(reader, parameter))
        BLIPFT_USER_CHECK(other == exact || same_numbers(reader, *exact, reader, *other), other->second.file, ": tensor ",
                          other->first, " differs from ", exact->first,
                          ", but config.json ties them; set its tie_word_embeddings to false to train both");
    }
  }
}

}  // namespace blipft
