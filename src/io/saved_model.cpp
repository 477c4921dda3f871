// Folders of saved models; see saved_model.h.
#include "io/saved_model.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "blipft/error.h"
#include "io/own_folder.h"

namespace blipft::io {

namespace fs = std::filesystem;

namespace {

constexpr const char *kPartial = ".partial", *kOld = ".old";

// The folder around a model, and the model's name in it.
struct Place {
  explicit Place(const std::string& directory)
      : path(fs::path(directory).parent_path().string()), name(fs::path(directory).filename().string()),
        parent(::open(path.empty() ? "." : path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {}  // that may be entered
  std::string path, name;
  FileDescriptor parent;
};

// A folder whose saving has not come to its end has no list of its files yet: tensors, and what describes them.
bool may_be_begun(const std::string& name) {
  for (const char* end : {".safetensors", ".json", ".txt", ".model", ".jinja"})
    if (name.ends_with(end)) return true;
  return false;
}

IsOwnName own_names(const Marker& marker) {
  if (marker.files.empty()) return may_be_begun;
  return [files = marker.files](const std::string& name) {
    return std::find(files.begin(), files.end(), name) != files.end();
  };
}

bool is_model_marker(const std::optional<Marker>& marker) {
  return marker && (marker->what == Marker::kModel || marker->what == Marker::kAdapter);
}

SavedModel look(const FileDescriptor& parent, const std::string& name) {
  SavedModel found;
  struct stat status{};
  if (::fstatat(parent.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return found;
  found.there = true;
  if (!S_ISDIR(status.st_mode)) {
    found.why = S_ISLNK(status.st_mode) ? "is a link" : "exists and is not a folder";
    return found;
  }
  const FileDescriptor folder = open_folder(parent, name);
  if (folder.get() < 0) {
    found.why = concat("cannot be read: ", errno_text());
    return found;
  }
  const std::vector<FolderEntry> entries = files_of(folder);
  const std::optional<Marker> marker = read_marker(folder);
  const bool only_begun = std::all_of(entries.begin(), entries.end(), [](const FolderEntry& entry) {
    return entry.is_file && entry.name != kMarkerName && is_marker_name(entry.name);
  });
  if (!is_model_marker(marker) && !only_begun) {
    found.why = concat("holds files that are not a saved model of blipft's (it has no ", kMarkerName, " that says so)");
    return found;
  }
  if (marker) found.marker = *marker;
  if (found.marker.files.empty() && !name.ends_with(kPartial) && !only_begun) {
    found.why = concat("its ", kMarkerName, " says that it was never saved to the end");
    return found;
  }
  const IsOwnName is_own = own_names(found.marker);
  if (const std::string foreign = foreign_in(folder, is_own); !foreign.empty()) {
    found.why = concat("holds ", foreign, " beside the saved model, which blipft did not write");
    return found;
  }
  found.own = true;
  found.bytes = own_bytes(folder, is_own);
  found.whole = !found.marker.files.empty() &&
                std::all_of(found.marker.files.begin(), found.marker.files.end(), [&](const std::string& file) {
                  return std::any_of(entries.begin(), entries.end(), [&](const auto& e) { return e.name == file; });
                });
  return found;
}

SavedModel look(const Place& place, const char* end) { return look(place.parent, place.name + end); }

void remove(const Place& place, const char* end, const SavedModel& model) {
  if (!model.own) return;
  const std::string name = place.name + end;
  remove_own_folder(place.parent, name, own_names(model.marker), (fs::path(place.path) / name).string());
}

bool rename(const Place& place, const char* from, const char* to) {
  return ::renameat(place.parent.get(), (place.name + from).c_str(), place.parent.get(), (place.name + to).c_str()) == 0;
}

void sync(const Place& place) { sync_directory(place.path.empty() ? "." : place.path); }

}  // namespace

SavedModel saved_model(const std::string& directory) { return look(Place(directory), ""); }

void check_saving(const std::string& directory) {
  const Place place(directory);
  for (const char* end : {"", kPartial, kOld}) {
    const SavedModel model = look(place, end);
    BLIPFT_USER_CHECK(!model.there || model.own, directory, end, ": ", model.why,
                      "; it is not replaced. Choose another folder for the model, or move this one away");
  }
}

void remove_saved(const std::string& directory) {
  const Place place(directory);
  remove(place, "", look(place, ""));
}

void replace_saved(const std::string& directory) {
  const Place place(directory);
  const SavedModel older = look(place, "");
  BLIPFT_USER_CHECK(!older.there || older.own, directory, ": ", older.why, "; it is not replaced. The new model is whole in ",
                    directory, kPartial);
  if (older.there && exchange(place.parent, place.name + kPartial, place.name)) {
    sync(place);
    remove(place, kPartial, look(place, kPartial));
    return;
  }
  if (older.there) {
    remove(place, kOld, look(place, kOld));
    BLIPFT_USER_CHECK(rename(place, "", kOld), directory, ": the older model cannot be moved to ", directory, kOld, ": ",
                      errno_text());
  }
  if (!rename(place, kPartial, "")) {
    const std::string reason = errno_text();
    if (older.there) rename(place, kOld, "");
    throw UserError(concat(directory, kPartial, ": cannot be renamed to ", directory, ": ", reason));
  }
  sync(place);
  if (older.there) remove(place, kOld, look(place, kOld));
}

std::string restore_saved(const std::string& directory) {
  const Place place(directory);
  if (place.parent.get() < 0) return "";
  const SavedModel now = look(place, ""), partial = look(place, kPartial), old = look(place, kOld);
  if (now.own && now.whole && old.own) {
    remove(place, kOld, old);
    return concat(directory, kOld, ", an older model that a saving has left, was removed");
  }
  if (now.there || !old.own || !old.whole) return "";
  const bool finish = partial.own && partial.whole;
  const char* from = finish ? kPartial : kOld;
  BLIPFT_USER_CHECK(rename(place, from, ""), directory, from, ": cannot be renamed to ", directory, ": ", errno_text());
  sync(place);
  if (finish) remove(place, kOld, old);
  return concat(directory, " had lost its name, because its replacement was interrupted: ",
                finish ? "the new model is there now (" : "the older model is back (",
                origin_text(finish ? partial.marker : old.marker), ")");
}

std::string origin_text(const Marker& marker) {
  return concat("run ", marker.run_id.empty() ? "unknown" : marker.run_id.substr(0, 8),
                marker.step >= 0 ? concat(", ", marker.step, " steps") : "");
}

}  // namespace blipft::io
