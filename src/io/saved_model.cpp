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

// The folder that contains a model, and the model's name in it.
struct ModelFolder {
  explicit ModelFolder(const std::string& directory)
      : path(fs::path(directory).parent_path().string()), name(fs::path(directory).filename().string()),
        // O_PATH also opens a folder that may be entered but not read.
        parent(::open(path.empty() ? "." : path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {}
  std::string path, name;
  FileDescriptor parent;
};

// Returns true if a file of this name may belong to an unfinished saving, whose marker does not list its files yet.
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
  const InspectedFolder inside = inspect(parent, name);
  SavedModel found{.there = inside.there, .why = inside.why};
  if (!found.there || !found.why.empty()) return found;
  if (!is_model_marker(inside.marker) && !inside.is_only_begun()) {
    found.why = concat("holds files that are not a saved model of blipft's (it has no ", kMarkerName, " that says so)");
    return found;
  }
  if (inside.marker) found.marker = *inside.marker;
  if (found.marker.files.empty() && !name.ends_with(kPartial) && !inside.is_only_begun()) {
    found.why = concat("its ", kMarkerName, " says that it was never saved to the end");
    return found;
  }
  const IsOwnName is_own = own_names(found.marker);
  if (const std::string foreign = inside.foreign(is_own); !foreign.empty()) {
    found.why = concat("holds ", foreign, " beside the saved model, which blipft did not write");
    return found;
  }
  found.own = true;
  found.bytes = inside.own_bytes(is_own);
  found.whole = !found.marker.files.empty() &&
                std::all_of(found.marker.files.begin(), found.marker.files.end(), [&](const std::string& file) {
                  return inside.has([&](const std::string& one) { return one == file; });
                });
  return found;
}

SavedModel look(const ModelFolder& folder, const char* end) { return look(folder.parent, folder.name + end); }

void remove(const ModelFolder& folder, const char* end, const SavedModel& model) {
  if (!model.own) return;
  const std::string name = folder.name + end;
  remove_own_folder(folder.parent, name, own_names(model.marker), (fs::path(folder.path) / name).string());
}

bool rename(const ModelFolder& folder, const char* from, const char* to) {
  return ::renameat(folder.parent.get(), (folder.name + from).c_str(), folder.parent.get(), (folder.name + to).c_str()) == 0;
}

void sync(const ModelFolder& folder) { sync_directory(folder.path.empty() ? "." : folder.path); }

}  // namespace

SavedModel saved_model(const std::string& directory) { return look(ModelFolder(directory), ""); }

void check_saving(const std::string& directory) {
  const ModelFolder folder(directory);
  for (const char* end : {"", kPartial, kOld}) {
    const SavedModel model = look(folder, end);
    BLIPFT_USER_CHECK(!model.there || model.own, directory, end, ": ", model.why,
                      "; it is not replaced. Choose another folder for the model, or move this one away");
  }
}

std::string free_saved_name(const std::string& directory) {
  const auto is_free = [](const std::string& name) {
    const ModelFolder folder(name);
    for (const char* end : {"", kPartial, kOld})
      if (const SavedModel model = look(folder, end); model.there && !model.own) return false;
    return true;
  };
  if (is_free(directory)) return directory;
  for (int number = 2;; ++number)
    if (const std::string name = concat(directory, "-", number); is_free(name)) return name;
}

std::vector<std::string> saved_names(const std::string& parent, const std::string& name) {
  std::vector<std::pair<long, std::string>> found;
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    const std::string found_name = entry->path().filename().string();
    if (found_name == name) found.push_back({1, name});
    if (!found_name.starts_with(name + "-")) continue;
    const std::string number = found_name.substr(name.size() + 1);
    const bool digits = !number.empty() && number.size() < 10 && number.find_first_not_of("0123456789") == std::string::npos;
    if (digits && number[0] != '0' && number != "1") found.push_back({std::stol(number), found_name});
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (auto& [number, one] : found) names.push_back(std::move(one));
  return names;
}

std::string newest_saved(const std::string& parent, const std::string& name, const std::string& file) {
  std::string newest;
  std::pair<bool, int64_t> newest_order;
  for (const std::string& one : saved_names(parent, name)) {
    const std::string folder = parent + "/" + one;
    std::error_code error;
    if (!fs::is_regular_file(folder + "/" + file, error)) continue;
    const std::optional<Marker> marker = read_marker(open_folder(folder, true));
    const bool known = is_model_marker(marker);
    const std::pair<bool, int64_t> order{known, known ? marker->step : -1};
    if (newest.empty() || order >= newest_order) newest = folder, newest_order = order;
  }
  return newest;
}

void remove_saved(const std::string& directory) {
  const ModelFolder folder(directory);
  remove(folder, "", look(folder, ""));
}

// Gives the complete directory.partial the next free name, because something else has the name `directory`.
std::string move_next_to(const ModelFolder& folder, const std::string& directory, const std::string& why) {
  const std::string target = free_saved_name(directory), name = fs::path(target).filename().string();
  BLIPFT_USER_CHECK(::renameat2(folder.parent.get(), (folder.name + kPartial).c_str(), folder.parent.get(), name.c_str(),
                                RENAME_NOREPLACE) == 0,
                    directory, ": ", why, "; it is not replaced. The new model is whole in ", directory, kPartial,
                    ", which cannot be renamed to ", name, ": ", errno_text());
  sync(folder);
  return target;
}

std::string replace_saved(const std::string& directory) {
  const ModelFolder folder(directory);
  const SavedModel older = look(folder, "");
  if (older.there && !older.own) return move_next_to(folder, directory, older.why);
  if (older.there) remove(folder, kOld, look(folder, kOld));
  const bool exchanged = replace_folder(folder.parent, folder.name + kPartial, folder.name, folder.name + kOld, directory);
  sync(folder);
  const char* const end = exchanged ? kPartial : kOld;
  if (older.there) remove(folder, end, look(folder, end));
  return directory;
}

std::string restore_saved(const std::string& directory) {
  const ModelFolder folder(directory);
  if (folder.parent.get() < 0) return "";
  const SavedModel now = look(folder, ""), partial = look(folder, kPartial), old = look(folder, kOld);
  if (now.own && now.whole && old.own) {
    remove(folder, kOld, old);
    return concat(directory, kOld, ", an older model that a saving has left, was removed");
  }
  if (now.there || !old.own || !old.whole) return "";
  const bool finish = partial.own && partial.whole;
  const char* from = finish ? kPartial : kOld;
  BLIPFT_USER_CHECK(rename(folder, from, ""), directory, from, ": cannot be renamed to ", directory, ": ", errno_text());
  sync(folder);
  if (finish) remove(folder, kOld, old);
  return concat(directory, " had lost its name, because its replacement was interrupted: ",
                finish ? "the new model is there now (" : "the older model is back (",
                origin_text(finish ? partial.marker : old.marker), ")");
}

std::string origin_text(const Marker& marker) {
  return concat("run ", marker.run_id.empty() ? "unknown" : marker.run_id.substr(0, 8),
                marker.step >= 0 ? concat(", ", marker.step, " steps") : "");
}

}  // namespace blipft::io
