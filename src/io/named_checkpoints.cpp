// The checkpoints of a folder, and their removal; see named_checkpoints.h.
#include "io/named_checkpoints.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <optional>
#include <tuple>

#include "blipft/error.h"
#include "io/marker.h"
#include "io/own_folder.h"
#include "io/state_files.h"

namespace blipft::io {

namespace {

constexpr const char *kIndex = "checkpoint.json", *kGemmTable = "gemm_algorithms.txt";
constexpr const char *kPartial = ".partial", *kAside = ".aside";
constexpr int64_t kMaxIndexBytes = int64_t{1} << 30;

// state-00000-of-00004.safetensors
bool is_state_name(const std::string& name) {
  const auto [front, middle, back] = std::tuple("state-", "-of-", ".safetensors");
  size_t at = 0;
  const auto word = [&](const std::string& text) {
    const bool there = name.compare(at, text.size(), text) == 0;
    at += text.size();
    return there;
  };
  const auto number = [&] {
    const size_t begin = at;
    while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at]))) ++at;
    return at - begin >= 5;
  };
  return name.size() > 30 && word(front) && number() && word(middle) && number() && word(back) && at == name.size();
}

bool is_own_name(const std::string& name) { return name == kIndex || name == kGemmTable || is_state_name(name); }

std::string without_spaces(const std::string& text) {
  std::string out;
  std::copy_if(text.begin(), text.end(), std::back_inserter(out), [](unsigned char c) { return !std::isspace(c); });
  return out;
}

// Returns true if the text begins like an index that this program wrote.
bool begins_as_index(const std::string& text) {
  return without_spaces(text.substr(0, 200)).starts_with(R"({"format":"blipftcheckpoint",)");
}

// Returns the reason why a folder is not a complete checkpoint of this program, or "" if it is one. In a complete
// checkpoint the index is not truncated, and all files that it names exist. An unfinished copy fails one of both
// conditions.
std::string not_whole(const FileDescriptor& folder, const std::string& index) {
  if (!begins_as_index(index)) return "its checkpoint.json is not blipft's";
  const size_t end = index.find_last_not_of(" \n\r\t");
  if (end == std::string::npos || index[end] != '}') return "its checkpoint.json is cut short";
  const std::string key = "\"name\":";
  for (size_t at = index.find(key); at != std::string::npos; at = index.find(key, at + 1)) {
    const size_t begin = index.find('"', at + key.size()), stop = index.find('"', begin + 1);
    if (begin == std::string::npos || stop == std::string::npos) return "its checkpoint.json is damaged";
    const std::string file = index.substr(begin + 1, stop - begin - 1);
    struct stat status{};
    if (!is_state_name(file) || ::fstatat(folder.get(), file.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(status.st_mode))
      return concat("its checkpoint.json names ", brief(file), ", which is not there");
  }
  return "";
}

// Parses step and suffix of a checkpoint's name. Accepts only the exact spelling that this program writes.
bool parse(const std::string& name, NamedCheckpoint& found) {
  using End = NamedCheckpoint::End;
  std::string stem = name;
  for (const auto& [text, end] : {std::pair{kPartial, End::partial}, std::pair{kAside, End::aside}})
    if (name.ends_with(text)) stem = name.substr(0, name.size() - std::string(text).size()), found.end = end;
  found.name = name;
  found.step = checkpoint_step(stem);
  return found.step >= 0 && checkpoint_name(found.step) == stem;
}

void look_inside(const FileDescriptor& parent, NamedCheckpoint& found) {
  const InspectedFolder inside = inspect(parent, found.name);
  if (!inside.why.empty()) {
    found.why = "it " + inside.why;
    found.claims = inside.is_folder;
    return;
  }
  const bool marked = inside.marker && inside.marker->what == Marker::kCheckpoint;
  const bool indexed = inside.has([](const std::string& name) { return name == kIndex; });
  const std::optional<std::string> index = read_beginning(inside.folder, kIndex, kMaxIndexBytes);
  if (inside.marker) found.run_id = inside.marker->run_id;
  if (found.end == NamedCheckpoint::End::none) {
    found.why = !indexed ? "it has no checkpoint.json" : !index ? "its checkpoint.json cannot be read"
                                                                  : not_whole(inside.folder, *index);
    found.own = found.why.empty();
    found.claims = !found.own && indexed && (marked || inside.has(is_state_name) || (index && begins_as_index(*index)));
  } else {                                 // one that was only begun may have nothing but the beginning of a marker
    found.own = marked || (index && not_whole(inside.folder, *index).empty()) || inside.is_only_begun();
    if (!found.own) found.why = concat("it has no ", kMarkerName, " of blipft's");
  }
  if (!found.own) return;
  found.foreign = inside.foreign(is_own_name);
  found.bytes = inside.own_bytes(is_own_name);
}

FileDescriptor opened(const std::string& folder) {
  FileDescriptor parent = open_folder(folder, true);
  BLIPFT_USER_CHECK(parent.get() >= 0, folder, ": cannot be opened: ", errno_text());
  return parent;
}

// A folder without a name of a checkpoint is not seen half removed.
std::string remove(const FileDescriptor& parent, const std::string& folder, const std::string& name) {
  const std::string left = remove_own_folder(parent, name, is_own_name, folder + "/" + name);
  return left.empty() ? "" : folder + "/" + name + "/" + left;
}

}  // namespace

std::string partial_name(int64_t step) { return checkpoint_name(step) + kPartial; }

NamedCheckpoint named_checkpoint(const std::string& folder, const std::string& name) {
  NamedCheckpoint found;
  const FileDescriptor parent = open_folder(folder, true);
  if (parse(name, found)) look_inside(parent, found);
  return found;
}

std::vector<NamedCheckpoint> named_checkpoints(const std::string& folder) {
  std::vector<NamedCheckpoint> all;
  const FileDescriptor parent = open_folder(folder, true);
  for (const FolderEntry& entry : entries_of(parent)) {
    NamedCheckpoint found;
    if (!parse(entry.name, found)) continue;
    look_inside(parent, found);
    all.push_back(std::move(found));
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return std::tie(a.step, a.name) < std::tie(b.step, b.name); });
  return all;
}

std::string remove_checkpoint(const std::string& folder, const NamedCheckpoint& checkpoint) {
  const FileDescriptor parent = opened(folder);
  if (!named_checkpoint(folder, checkpoint.name).own) return folder + "/" + checkpoint.name;
  const std::string aside = checkpoint_name(checkpoint.step) + kAside;
  // A folder with foreign files keeps its name. It also keeps its name if something else has the .aside name.
  if (checkpoint.end != NamedCheckpoint::End::none || !checkpoint.foreign.empty())
    return remove(parent, folder, checkpoint.name);
  if (name_in_use(parent, aside) && named_checkpoint(folder, aside).own) remove(parent, folder, aside);
  if (name_in_use(parent, aside) || ::renameat(parent.get(), checkpoint.name.c_str(), parent.get(), aside.c_str()) != 0)
    return remove(parent, folder, checkpoint.name);
  return remove(parent, folder, aside);
}

void publish_checkpoint(const std::string& folder, int64_t step) {
  const FileDescriptor parent = opened(folder);
  const std::string partial = partial_name(step), name = checkpoint_name(step), aside = name + kAside;
  const std::string whole = folder + "/" + name;
  const bool is_again = name_in_use(parent, name);  // a part of the run that was done again
  const NamedCheckpoint earlier = named_checkpoint(folder, name);
  BLIPFT_USER_CHECK(!is_again || (earlier.own && earlier.foreign.empty()), whole, ": is in the way of the checkpoint: ",
                    earlier.own ? concat(earlier.foreign, " in it is not blipft's") : earlier.why, "; move it away");
  if (is_again && named_checkpoint(folder, aside).own) remove(parent, folder, aside);
  const bool exchanged = replace_folder(parent, partial, name, aside, whole);
  try {
    if (is_again) remove(parent, folder, exchanged ? partial : aside);
  } catch (const UserError&) {             // it is no checkpoint any more; the next start tries again
  }
}

}  // namespace blipft::io
