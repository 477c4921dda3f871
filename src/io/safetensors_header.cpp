// The header of a safetensors file: reading with all checks that the format requires, and writing.
#include "io/safetensors_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "blipft/error.h"
#include "io/json.h"

namespace blipft::io {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian, and so is this code");

namespace {

struct DTypeName {
  const char* name;
  DType dtype;
};
constexpr DTypeName dtype_names[] = {{"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16},
                                     {"I64", DType::i64}, {"I32", DType::i32}, {"U8", DType::u8}};

DType parse_dtype(const json& info, const std::string& what) {
  BLIPFT_USER_CHECK(info.contains("dtype") && info["dtype"].is_string(), what, ": the header gives no dtype");
  const auto& text = info["dtype"].get_ref<const std::string&>();
  for (const DTypeName& known : dtype_names)
    if (text == known.name) return known.dtype;
  if (text == "F64") return DType::f32;      // see StoredTensor::f64
  throw UserError(concat(what, ": dtype ", blipft::brief(text),
                         " is not supported; supported are F64, F32, F16, BF16, I64, I32 and U8"));
}

int64_t parse_size(const json& value, const std::string& what, const char* where) {
  BLIPFT_USER_CHECK(value.is_number_unsigned() &&
                        value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
                    what, ": ", where, " holds ", brief(value), ", expected a whole number of 0 or more");
  return static_cast<int64_t>(value.get<uint64_t>());
}

/// Returns the tensor with offsets relative to the start of the data, as stored.
StoredTensor parse_tensor(const json& info, const std::string& path, const std::string& what) {
  BLIPFT_USER_CHECK(info.is_object(), what, ": the header holds ", info.type_name(), ", expected an object");
  StoredTensor tensor;
  tensor.file = path;
  tensor.dtype = parse_dtype(info, what);
  tensor.f64 = info["dtype"] == "F64";
  BLIPFT_USER_CHECK(info.contains("shape") && info["shape"].is_array(), what, ": the header gives no shape");
  for (const json& size : info["shape"]) tensor.shape.push_back(parse_size(size, what, "shape"));
  BLIPFT_USER_CHECK(info.contains("data_offsets") && info["data_offsets"].is_array() &&
                        info["data_offsets"].size() == 2,
                    what, ": the header gives no pair data_offsets");
  tensor.begin = parse_size(info["data_offsets"][0], what, "data_offsets");
  tensor.end = parse_size(info["data_offsets"][1], what, "data_offsets");
  BLIPFT_USER_CHECK(tensor.begin <= tensor.end, what, ": data_offsets [", tensor.begin, ", ", tensor.end,
                    "] end before they begin");
  int64_t expected = 0;
  BLIPFT_USER_CHECK(!__builtin_mul_overflow(checked_numel(tensor.shape, what), tensor.f64 ? 8 : dtype_size(tensor.dtype),
                                            &expected),
                    what, ": shape ", shape_text(tensor.shape), " is larger than any file");
  BLIPFT_USER_CHECK(tensor.end - tensor.begin == expected, what, ": shape ", shape_text(tensor.shape), " of ",
                    tensor.f64 ? "f64" : dtype_name(tensor.dtype), " needs ", expected, " bytes, but data_offsets [", tensor.begin, ", ",
                    tensor.end, "] hold ", tensor.end - tensor.begin);
  return tensor;
}

/// Checks that the tensors cover the data from 0 to its end without gaps or overlaps.
void check_layout(const std::map<std::string, StoredTensor>& tensors, int64_t data_bytes, const std::string& path) {
  std::vector<std::pair<const std::string*, const StoredTensor*>> order;
  for (const auto& [name, tensor] : tensors) order.emplace_back(&name, &tensor);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  int64_t end = 0;
  const std::string* previous = nullptr;
  for (const auto& [name, tensor] : order) {
    BLIPFT_USER_CHECK(tensor->end <= data_bytes, path, ": tensor '", blipft::brief(*name), "': data_offsets [",
                      tensor->begin, ", ", tensor->end, "] lie outside of the file's ", data_bytes,
                      " data bytes; the file is cut short (copy or download it again) or its header is wrong");
    BLIPFT_USER_CHECK(tensor->begin >= end, path, ": tensor '", blipft::brief(*name), "' begins at data byte ",
                      tensor->begin, " and overlaps tensor '", previous ? blipft::brief(*previous) : "", "', which ends at ", end);
    BLIPFT_USER_CHECK(tensor->begin == end, path, ": tensor '", blipft::brief(*name), "' begins at data byte ",
                      tensor->begin,
                      ", but the tensor before it ends at ", end, "; the format allows no holes");
    end = tensor->end;
    previous = name;
  }
  BLIPFT_USER_CHECK(end == data_bytes, path, ": the file has ", data_bytes, " data bytes, but its tensors end at ",
                    end, "; the file does not belong to its header");
}

json parse_header_text(const std::string& text, const std::string& path) {
  std::set<std::string> names;
  const json::parser_callback_t refuse_duplicates = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1)
      BLIPFT_USER_CHECK(names.insert(parsed.get<std::string>()).second, path, ": the header names tensor '",
                        blipft::brief(parsed.get<std::string>()), "' twice");
    return true;
  };
  json header = parse_json<json>(text, concat(path, ": the header of a safetensors file"), refuse_duplicates);
  BLIPFT_USER_CHECK(header.is_object(), path, ": the header is not a JSON object; is it a safetensors file?");
  return header;
}

}  // namespace

std::map<std::string, StoredTensor> read_safetensors_header(const FileDescriptor& file, const std::string& path) {
  const int64_t length = file_size(file, path);
  BLIPFT_USER_CHECK(length >= 8, path, ": has ", length, " bytes, a safetensors file has at least 8");
  uint64_t header_length = 0;
  read_at(file, 0, &header_length, 8, path);
  BLIPFT_USER_CHECK(header_length <= static_cast<uint64_t>(max_header_bytes), path, ": claims a header of ",
                    header_length, " bytes, the format allows ", max_header_bytes, "; is it a safetensors file?");
  const auto header_bytes = static_cast<int64_t>(header_length);
  BLIPFT_USER_CHECK(8 + header_bytes <= length, path, ": claims a header of ", header_bytes, " bytes, but has only ",
                    length - 8, " after the length; the file is cut short: copy or download it again");
  std::string text(header_length, '\0');
  read_at(file, 8, text.data(), header_bytes, path);
  BLIPFT_USER_CHECK(!text.empty() && text[0] == '{', path,
                    ": the header does not begin with '{'; is it a safetensors file?");

  const json header = parse_header_text(text, path);
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, info] : header.items())
    if (name != "__metadata__")
      tensors[name] = parse_tensor(info, path, concat(path, ": tensor '", blipft::brief(name), "'"));
  const int64_t data_begin = 8 + header_bytes;
  check_layout(tensors, length - data_begin, path);
  for (auto& [name, tensor] : tensors) {
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  return tensors;
}

std::string make_safetensors_header(const std::vector<HeaderEntry>& entries) {
  std::string text = R"({"__metadata__":{"format":"pt"})";
  for (const HeaderEntry& entry : entries) {
    const char* dtype = nullptr;
    for (const DTypeName& known : dtype_names)
      if (known.dtype == entry.dtype) dtype = known.name;
    std::string shape;
    for (int64_t size : entry.shape) shape += (shape.empty() ? "" : ",") + std::to_string(size);
    text += concat(",", json_quoted(entry.name), R"(:{"dtype":")", dtype, R"(","shape":[)", shape,
                   R"(],"data_offsets":[)", entry.begin, ",", entry.end, "]}");
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string header(8, '\0');
  std::memcpy(header.data(), &length, 8);
  return header + text;
}

int64_t checked_numel(const std::vector<int64_t>& shape, const std::string& what) {
  // A size of 0 makes the product 0, whatever the other sizes are.
  int64_t numel = 1;
  for (int64_t size : shape) {
    BLIPFT_USER_CHECK(size >= 0, what, ": shape ", shape_text(shape), " has a negative size");
    BLIPFT_USER_CHECK(!__builtin_mul_overflow(numel, size, &numel), what, ": shape ", shape_text(shape),
                      " is larger than any file");
  }
  return numel;
}

std::string json_quoted(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    throw UserError(concat("the name '", blipft::brief(text), "' is not valid UTF-8"));
  }
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  const size_t shown = std::min<size_t>(shape.size(), 16);
  for (size_t i = 0; i < shown; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shown < shape.size() ? ", ...]" : "]");
}

}  // namespace blipft::io
