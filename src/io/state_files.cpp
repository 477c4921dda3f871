// Names, layout and index of a checkpoint's files; see state_files.h.
#include "io/state_files.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "blipft/error.h"
#include "io/crc32c.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors_header.h"

namespace blipft::io {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

constexpr const char* kFormat = "blipft checkpoint";
constexpr int64_t kVersion = 2;
constexpr const char* kDamaged = "; the checkpoint is damaged: remove it, and resume from another";
constexpr int64_t kMaxIndexBytes = int64_t{1} << 30;  // enough for some millions of pieces
constexpr int64_t kMaxBytes = int64_t{1} << 50;  // maximum of a file; larger values mean that the index is damaged

// Returns the last line of the index: the checksum of all the text before it.
std::string checksum_line(std::string_view text) {
  return concat(",\n \"crc32c\": ", crc32c(text.data(), static_cast<int64_t>(text.size())), "\n}\n");
}

bool has_its_checksum(std::string_view text) {
  const size_t at = text.rfind(",\n \"crc32c\": ");
  return at != std::string_view::npos && text.substr(at) == checksum_line(text.substr(0, at));
}

// Checks format and checksum before any content of an index is used: a changed number or name would alter the run.
void check_index(const ordered_json& json, const std::string& text) {
  BLIPFT_USER_CHECK(json.is_object() && json.value("format", "") == kFormat, "is not the index of a checkpoint");
  const auto version = json.at("version").get<int64_t>();
  const bool whole = has_its_checksum(text);
  if (!whole && version == 1 && !json.contains("crc32c")) {
    const ordered_json run = json.value("run", ordered_json::object());
    throw UserError(concat("version 1 of the format, which has no checksum to detect a damaged index; expected version ",
                           kVersion, ". Go on with the version of blipft that wrote it (commit ",
                           blipft::brief(run.is_object() ? run.value("version", "unknown") : "unknown"),
                           "), or export the model with that version (--export) and begin a new run from it"));
  }
  BLIPFT_USER_CHECK(whole, "its text does not have the checksum in its last line", kDamaged);
  BLIPFT_USER_CHECK(version == kVersion, "version ", version, " of the format, expected ", kVersion,
                    "; it was written by another version of blipft: go on with that");
  const auto layout = json.value("parameter_layout", int64_t{1});  // older checkpoints do not have the key
  BLIPFT_USER_CHECK(layout <= kParameterLayout, "parameter_layout: found ", layout, ", expected at most ", kParameterLayout,
                    ". A newer version of blipft wrote this checkpoint: resume it or export its model with that");
}

int64_t whole_numel(const StatePiece& piece) { return checked_numel(piece.shape, blipft::brief(piece.tensor)); }

ordered_json to_json(const StateFile& file) {
  ordered_json pieces = ordered_json::array();
  for (const StatePiece& piece : file.pieces)
    pieces.push_back({{"tensor", piece.tensor}, {"dtype", dtype_name(piece.dtype)}, {"shape", piece.shape},
                      {"first", piece.first}, {"count", piece.count}, {"offset", piece.offset},
                      {"crc32c", piece.checksums}});
  return {{"name", file.name}, {"bytes", file.bytes}, {"pieces", std::move(pieces)}};
}

DType dtype_of(const std::string& name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8})
    if (name == dtype_name(dtype)) return dtype;
  throw UserError(concat("dtype \"", blipft::brief(name), "\" is not known"));
}

// Throws UserError, or an exception of nlohmann, if the JSON does not have the expected form.
StateFile from_json(const ordered_json& json) {
  StateFile file{json.at("name").get<std::string>(), json.at("bytes").get<int64_t>(), {}};
  // The name must be short and without control characters, so that messages can quote it unchanged.
  const std::string shown = blipft::brief(file.name);
  BLIPFT_USER_CHECK(!file.name.empty() && file.name.find('/') == std::string::npos && file.name == shown, "\"", shown,
                    "\" is no name of a checkpoint's file");
  BLIPFT_USER_CHECK(file.bytes >= 0 && file.bytes <= kMaxBytes, file.name, " has ", file.bytes, " bytes");
  for (const ordered_json& one : json.at("pieces")) {
    StatePiece piece{.tensor = one.at("tensor").get<std::string>(),
                     .dtype = dtype_of(one.at("dtype").get<std::string>()),
                     .shape = one.at("shape").get<std::vector<int64_t>>(), .first = one.at("first").get<int64_t>(),
                     .count = one.at("count").get<int64_t>(), .offset = one.at("offset").get<int64_t>(),
                     .checksums = one.at("crc32c").get<std::vector<uint32_t>>()};
    const int64_t whole = whole_numel(piece);
    const std::string tensor = blipft::brief(piece.tensor);
    BLIPFT_USER_CHECK(piece.first >= 0 && piece.count > 0 && piece.first < whole && piece.count <= whole - piece.first,
                      "elements ", piece.first, " to ", piece.first, " + ", piece.count, " of ", tensor, ", which has ",
                      whole);
    BLIPFT_USER_CHECK(piece.offset >= 0 && piece.count <= file.bytes && piece.bytes() <= file.bytes &&
                          piece.offset <= file.bytes - piece.bytes(),
                      tensor, " ends behind the end of ", file.name);
    BLIPFT_USER_CHECK(static_cast<int64_t>(piece.checksums.size()) == piece.segments(), tensor, " has ",
                      piece.checksums.size(), " checksums, expected ", piece.segments());
    file.pieces.push_back(std::move(piece));
  }
  return file;
}

}  // namespace

std::string state_file_name(int64_t rank, int64_t ranks) {
  char name[64];
  std::snprintf(name, sizeof name, "state-%05lld-of-%05lld.safetensors", static_cast<long long>(rank),
                static_cast<long long>(ranks));
  return name;
}

std::string checkpoint_name(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return name;
}

int64_t checkpoint_step(const std::string& name) {
  if (name.rfind("step-", 0) != 0 || name.size() < 6 || name.size() > 23) return -1;
  int64_t step = 0;
  for (const char digit : name.substr(5)) {
    if (digit < '0' || digit > '9') return -1;
    step = 10 * step + (digit - '0');
  }
  return step;
}

std::string lay_out(StateFile& file) {
  // Pieces with larger elements come first, so that every piece is aligned to its element size.
  std::stable_sort(file.pieces.begin(), file.pieces.end(), [](const StatePiece& a, const StatePiece& b) {
    return dtype_size(a.dtype) > dtype_size(b.dtype);
  });
  std::vector<HeaderEntry> entries;
  int64_t end = 0;
  for (StatePiece& piece : file.pieces) {
    const bool whole = piece.count == whole_numel(piece);
    const std::string name =
        whole ? piece.tensor : concat(piece.tensor, "[", piece.first, ":", piece.first + piece.count, "]");
    piece.offset = end;
    end += piece.bytes();
    entries.push_back({name, piece.dtype, whole ? piece.shape : std::vector<int64_t>{piece.count}, piece.offset, end});
    piece.checksums.assign(static_cast<size_t>(piece.segments()), 0);
  }
  std::string header = make_safetensors_header(entries);
  for (StatePiece& piece : file.pieces) piece.offset += static_cast<int64_t>(header.size());
  file.bytes = static_cast<int64_t>(header.size()) + end;
  return header;
}

std::string file_text(const StateFile& file) { return to_json(file).dump(); }

StateFile parse_file(const std::string& text) {
  return from_json(parse_json<ordered_json>(text, "the list of a rank's pieces"));
}

std::string with_checksum(const std::string& text) { return text + checksum_line(text); }

std::string index_text(const StateIndex& index) {
  ordered_json config = ordered_json::object(), files = ordered_json::array();
  for (const auto& [key, value] : index.config) config[key] = value;
  for (const StateFile& file : index.files) files.push_back(to_json(file));
  const ordered_json json{{"format", kFormat}, {"version", kVersion}, {"parameter_layout", kParameterLayout},
                          {"step", index.step}, {"run", index.run}, {"config", std::move(config)}, {"files", std::move(files)}};
  std::string text = json.dump(1, ' ', false, ordered_json::error_handler_t::replace);  // a path may be in another encoding
  text.resize(text.size() - 2);            // the line end and bracket that close it
  return with_checksum(text);
}

void check_whole(const StateIndex& index, int64_t bytes) {
  std::map<std::string, std::map<int64_t, int64_t>> ranges;  // per tensor: {first element: count}
  int64_t found = 0;
  for (const StateFile& file : index.files)
    for (const StatePiece& piece : file.pieces) {
      BLIPFT_CHECK(ranges[piece.tensor].emplace(piece.first, piece.count).second, file.name, ": ", piece.tensor,
                   " from element ", piece.first, " on was written by another rank too");
      found += piece.bytes();
    }
  for (const auto& [tensor, parts] : ranges) {
    int64_t end = 0;
    for (const auto& [first, count] : parts) {
      BLIPFT_CHECK(first >= end, tensor, ": elements ", first, " to ", end - 1, " were written by two ranks");
      end = first + count;
    }
  }
  BLIPFT_CHECK(found == bytes, "the ranks wrote ", found, " of ", bytes, " bytes");
}

StateIndex read_index(const std::string& folder) {
  const std::string path = folder + "/checkpoint.json";
  BLIPFT_USER_CHECK(std::filesystem::exists(path), folder, ": no checkpoint is there; expected a folder of a run's ",
                    "checkpoints, step-NNNNNNNN with checkpoint.json in it");
  StateIndex index;
  try {
    const std::string text = read_whole_file(path, kMaxIndexBytes);
    const auto json = parse_json<ordered_json>(text, path);
    check_index(json, text);
    index.step = json.at("step").get<int64_t>();
    BLIPFT_USER_CHECK(index.step >= 0, "step ", index.step);
    index.run = json.at("run").get<std::map<std::string, std::string>>();
    for (const auto& [key, value] : json.at("config").items()) index.config.push_back({key, value.get<std::string>()});
    for (const ordered_json& file : json.at("files")) index.files.push_back(from_json(file));
  } catch (const nlohmann::json::exception& error) {
    throw UserError(concat(path, ": ", std::string(error.what()).substr(0, 200),
                           kDamaged));
  } catch (const UserError& error) {
    const std::string what = error.what();
    if (what.rfind(path, 0) != 0) throw UserError(concat(path, ": ", what));
    throw UserError(concat(what, kDamaged));
  }
  const int64_t named = checkpoint_step((fs::path(folder + "/").parent_path()).filename().string());
  BLIPFT_USER_CHECK(named < 0 || named == index.step, path, ": step ", index.step, ", but the folder's name says ", named,
                    kDamaged);
  for (const StateFile& file : index.files) {
    const std::string name = folder + "/" + file.name;
    int64_t found = 0;
    try {
      found = file_size(open_for_reading(name), name);
    } catch (const UserError& error) {
      throw UserError(concat(error.what(), "; the checkpoint is damaged, or a copy that is not complete: remove ", folder,
                             ", and resume from another"));
    }
    BLIPFT_USER_CHECK(found == file.bytes, name, ": has ", found, " bytes, expected ", file.bytes,
                      "; the checkpoint is damaged: remove ", folder, ", and resume from another");
  }
  return index;
}

void write_whole_file(const std::string& path, const std::string& text) {
  const FileDescriptor file = create_file(path);
  write_at(file, 0, text.data(), static_cast<int64_t>(text.size()), path);
  sync_file(file, path);
}

}  // namespace blipft::io
