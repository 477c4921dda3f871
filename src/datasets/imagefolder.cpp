// ImageFolder: a directory of pictures with captions, listed by image_metadata.h.
#include <algorithm>
#include <bit>
#include <filesystem>
#include <unordered_map>

#include "blipft/error.h"
#include "blipft/pictures.h"
#include "datasets/dataset_formats.h"
#include "datasets/image_metadata.h"
#include "datasets/picture_format.h"
#include "io/file.h"
#include "io/paths.h"

namespace blipft {
namespace {

namespace fs = std::filesystem;

/// Looks up the picture files of the metadata. Examining every file is slow on network file systems. Therefore each
/// folder is listed once, and only links are resolved.
class Folders {
 public:
  Folders(const fs::path& root, bool allow_outside)
      : root_(root), real_root_(fs::weakly_canonical(root)), allow_outside_(allow_outside) {}

  enum class Found { inside, outside, absent };
  Found find(const std::string& file) {
    if (!allow_outside_ && io::leads_out(file, real_root_)) return Found::outside;
    const fs::path path = root_ / file;
    const auto [location, added] = folders_.try_emplace(path.parent_path().string());
    Folder& folder = location->second;
    if (added) look_into(path.parent_path(), folder);
    const auto found = folder.is_link.find(path.filename().string());
    if (found == folder.is_link.end()) return Found::absent;
    if (allow_outside_) return Found::inside;
    if (!folder.inside || (found->second && !io::is_inside(path, real_root_))) return Found::outside;
    return Found::inside;
  }

 private:
  struct Folder {
    bool inside = true;
    std::unordered_map<std::string, bool> is_link;  // regular files; the value is true for a link
  };
  void look_into(const fs::path& path, Folder& folder) const {
    std::error_code error;
    folder.inside = allow_outside_ || io::is_inside(path, real_root_);
    for (fs::directory_iterator item(path, error), end; !error && item != end; item.increment(error)) {
      std::error_code broken;
      if (item->is_regular_file(broken))
        folder.is_link.emplace(item->path().filename().string(), item->is_symlink(broken));
    }
  }

  const fs::path root_, real_root_;
  const bool allow_outside_;
  std::unordered_map<std::string, Folder> folders_;
};

// Returns a description of what exists at the path of a picture that cannot be used.
std::string why_absent(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    return fs::is_symlink(fs::symlink_status(path, error)) ? "is a link that leads nowhere" : "does not exist";
  if (status.type() == fs::file_type::none) return concat("cannot be looked at: ", error.message());
  if (status.type() == fs::file_type::directory) return "is a folder, expected a file";
  return "is a named pipe, a device or a socket, expected a regular file";
}

void check_pictures(const PictureList& list, bool allow_outside) {
  Folders folders(list.root, allow_outside);
  int64_t absent = 0;
  const PictureEntry* first = nullptr;
  const auto location = [&](const PictureEntry& entry) {
    return entry.line > 0 ? concat(list.metadata, ":", entry.line) : list.metadata;
  };
  for (const PictureEntry& entry : list.entries) {
    const Folders::Found found = folders.find(entry.file);
    BLIPFT_USER_CHECK(found != Folders::Found::outside, location(entry), ": file_name \"", brief(entry.file),
                      "\" leads out of ", list.root, ", by .., as an absolute path or through a link; copy the ",
                      "picture there, or set data.allow_outside: true where you trust this file");
    if (found == Folders::Found::inside) continue;
    if (!first) first = &entry;
    ++absent;
  }
  BLIPFT_USER_CHECK(absent == 0, location(*first), ": picture ", brief((fs::path(list.root) / first->file).string(), 200),
                    " ", why_absent(fs::path(list.root) / first->file), " (so it is with ", absent, " of ", list.entries.size(),
                    " pictures); paths are relative to ",
                    list.root, ", or to the folder that data.pictures names");
}

/// Returns the text in the .txt file of a picture, without the line ends at its end, which editors add.
std::string caption_next_to(const std::string& picture) {
  std::string text = io::read_whole_file(caption_file_of(picture), max_text_bytes);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // byte order mark
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

class ImageFolder final : public Dataset {
 public:
  ImageFolder(PictureList list, TextSettings settings)
      : metadata_(std::move(list.metadata)), root_(std::move(list.root)), entries_(std::move(list.entries)), unread_(std::move(list.unread_keys)),
        others_(list.others), settings_(std::move(settings)) {}

  int64_t size() const override { return static_cast<int64_t>(entries_.size()); }
  std::string unread_keys() const override { return unread_; }
  std::optional<int64_t> other_files() const override { return others_; }

  // Includes the sizes of a few pictures only: examining a million files takes minutes on network file systems.
  void identify(const Take& take) const override {
    constexpr int64_t kLookedAt = 32;
    const int64_t stride = std::max<int64_t>(1, size() / kLookedAt);
    for (int64_t i = 0; i < size(); ++i) {
      const PictureEntry& entry = entries_[static_cast<size_t>(i)];
      std::error_code error;
      const bool look = i % stride == 0;
      take(entry.file, look ? static_cast<int64_t>(fs::file_size(root_ / entry.file, error)) : 0);
      take(entry.text.captions.empty() ? "" : entry.text.captions.front(), entry.line);
      if (!entry.text.prompt) continue;
      take(*entry.text.prompt, static_cast<int64_t>(entry.text.answers.size()));
      for (const Answer& answer : entry.text.answers) take(answer.text, std::bit_cast<int64_t>(answer.weight));
    }
  }

  void identify_contents(const Take& take) const override {
    for (const PictureEntry& entry : entries_) {
      if (!entry.text_next_to) continue;     // identify() covers the texts of the others
      try {
        take(caption_next_to((root_ / entry.file).string()), 0);
      } catch (const UserError&) {
        take("cannot be read", 0);
      }
    }
    for (const int64_t i : spread_samples(size(), max_sizes_looked_at)) {
      std::error_code error;
      take("", static_cast<int64_t>(fs::file_size(root_ / entries_[static_cast<size_t>(i)].file, error)));
    }
    for (const int64_t i : spread_samples(size(), max_pictures_looked_into)) {
      try {
        const std::string name = (root_ / entries_[static_cast<size_t>(i)].file).string();
        const io::FileDescriptor file = io::open_for_reading(name);
        std::string bytes(static_cast<size_t>(std::min(io::file_size(file, name), max_bytes_looked_at)), '\0');
        io::read_at(file, 0, bytes.data(), static_cast<int64_t>(bytes.size()), name);
        take(bytes, i);
      } catch (const UserError&) {
        take("cannot be read", i);
      }
    }
  }

  Sample read(int64_t index) const override {
    BLIPFT_CHECK(index >= 0 && index < size(), "sample ", index, " of ", size());
    const PictureEntry& entry = entries_[index];
    Sample sample;
    sample.name = (root_ / entry.file).string();
    fill_sample(text_of(entry), settings_, location_of(entry), sample);
    sample.number = index;
    if (settings_.pictures_in_texts) {
      sample.pictures = {{sample.name, sample.name}};
      return sample;
    }
    const io::FileDescriptor file = io::open_for_reading(sample.name);
    const int64_t bytes = io::file_size(file, sample.name);
    BLIPFT_USER_CHECK(bytes <= max_picture_bytes, sample.name, ": has ", bytes,
                      " bytes, expected a picture of at most ",
                      max_picture_bytes, "; replace this file or remove it from the dataset");
    std::vector<uint8_t>& picture = sample.picture.emplace(static_cast<size_t>(bytes));
    io::read_at(file, 0, picture.data(), bytes, sample.name);
    return sample;
  }

  void check_picture_formats() const override {
    const auto name = [&](int64_t i) { return entries_[static_cast<size_t>(i)].file; };
    refuse_unsupported_pictures(metadata_, size(), name, [&](int64_t i) -> std::string {
      try {
        const std::string path = (root_ / name(i)).string();
        const io::FileDescriptor file = io::open_for_reading(path);
        std::string bytes(static_cast<size_t>(std::min(io::file_size(file, path), format_bytes)), '\0');
        io::read_at(file, 0, bytes.data(), static_cast<int64_t>(bytes.size()), path);
        return bytes;
      } catch (const UserError&) {           // read() reports the error
        return "";
      }
    });
  }

  SplitGroup split_group(int64_t index) const override {
    return {io::absolute_path((root_ / entries_.at(static_cast<size_t>(index)).file).string()), false};
  }

  Prompt read_prompt(int64_t index) const override {
    BLIPFT_CHECK(index >= 0 && index < size(), "sample ", index, " of ", size());
    const PictureEntry& entry = entries_[static_cast<size_t>(index)];
    Prompt prompt;
    prompt.name = prompt.picture = (root_ / entry.file).string();
    fill_prompt(text_of(entry), settings_, location_of(entry), prompt);
    if (settings_.pictures_in_texts) prompt.pictures = {{prompt.name, prompt.name}};
    return prompt;
  }

 private:
  PictureText text_of(const PictureEntry& entry) const {
    if (!entry.text_next_to) return entry.text;
    return {std::nullopt, {caption_next_to((root_ / entry.file).string())}, {}, {}};
  }
  std::string location_of(const PictureEntry& entry) const {
    return entry.line > 0 ? concat(metadata_, ":", entry.line) : (root_ / entry.file).string();
  }
  std::string metadata_;
  fs::path root_;
  std::vector<PictureEntry> entries_;
  std::string unread_;
  std::optional<int64_t> others_;
  TextSettings settings_;
};

}  // namespace

std::unique_ptr<Dataset> open_pictures_alone(const std::string& path, const TextSettings& settings) {
  PictureList list = list_pictures_alone(path);
  if (list.entries.empty()) return nullptr;
  check_pictures(list, settings.allow_outside);
  return std::make_unique<ImageFolder>(std::move(list), settings);
}

std::unique_ptr<Dataset> open_image_folder(const std::string& path, const TextSettings& settings) {
  PictureList list = read_picture_list(path, settings);
  BLIPFT_USER_CHECK(!list.entries.empty(), list.metadata, ": no samples in it");
  check_pictures(list, settings.allow_outside);
  const auto has_text = [](const PictureEntry& entry) { return entry.text_next_to || !entry.text.is_empty(); };
  BLIPFT_USER_CHECK(settings.for_prompts || std::any_of(list.entries.begin(), list.entries.end(), has_text), list.metadata, ": all ",
                    list.entries.size(), " captions are empty, so there is nothing to learn; write them under text (or ",
                    "caption)");
  return std::make_unique<ImageFolder>(std::move(list), settings);
}

}  // namespace blipft
