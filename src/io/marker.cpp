// Markers of folders; see marker.h.
#include "io/marker.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "blipft/error.h"
#include "io/json.h"

namespace blipft::io {

using nlohmann::ordered_json;

namespace {

constexpr const char* kCreator = "blipft";
constexpr int64_t kMaxBytes = int64_t{1} << 20;

std::string text_of(const Marker& marker) {
  ordered_json json{{"made_by", kCreator}, {"what", marker.what}, {"run_id", marker.run_id}};
  if (marker.step >= 0) json["step"] = marker.step;
  if (!marker.files.empty()) json["files"] = marker.files;
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::optional<Marker> parse(const std::string& text) {
  try {
    const auto json = parse_json<ordered_json>(text, kMarkerName);
    if (!json.is_object() || json.value("made_by", "") != kCreator) return std::nullopt;
    return Marker{json.value("what", ""), json.value("run_id", ""), json.value("step", int64_t{-1}),
                  json.value("files", std::vector<std::string>{})};
  } catch (const std::exception&) {        // the file belongs to another program or is damaged: it proves nothing
    return std::nullopt;
  }
}

}  // namespace

FileDescriptor open_folder(const std::string& path, bool follow) {
  return FileDescriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW)));
}

FileDescriptor open_folder(const FileDescriptor& parent, const std::string& name) {
  return FileDescriptor(::openat(parent.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
}

std::optional<std::string> read_beginning(const FileDescriptor& folder, const std::string& name, int64_t max_bytes) {
  const FileDescriptor file(
      ::openat(folder.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  struct stat status{};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  std::string text(static_cast<size_t>(std::min<int64_t>(status.st_size, max_bytes)), '\0');
  try {
    read_at(file, 0, text.data(), static_cast<int64_t>(text.size()), name);
  } catch (const UserError&) {
    return std::nullopt;
  }
  return text;
}

void write_marker(const std::string& folder, const Marker& marker) {
  const std::string path = folder + "/" + kMarkerName;
  const std::string fresh = path + "." + (marker.run_id.empty() ? "new" : marker.run_id);  // nobody else's name
  BLIPFT_USER_CHECK(!name_in_use(path) || read_marker(open_folder(folder, true)), path,
                    ": is not of blipft's making, but stands where ", folder,
                    " is to be marked as this run's; move it away, or choose another folder");
  replace_file(path, fresh, text_of(marker));
}

std::optional<Marker> read_marker(const FileDescriptor& folder) {
  if (folder.get() < 0) return std::nullopt;
  const std::optional<std::string> text = read_beginning(folder, kMarkerName, kMaxBytes);
  return text ? parse(*text) : std::nullopt;
}

std::optional<Marker> read_marker(const std::string& folder) { return read_marker(open_folder(folder)); }

}  // namespace blipft::io
