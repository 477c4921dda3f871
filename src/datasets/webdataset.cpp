// WebDataset: samples in .tar shards. Files whose paths are equal up to the first dot of the file name form one sample.
//
// Opening reads only the tar headers (ustar, GNU long names, pax path and size) and stores the offset of each member.
// Samples are then read in any order. A shard is open only while it is read, because a dataset may have more shards
// than a process may open.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include <glob.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "blipft/error.h"
#include "blipft/pictures.h"
#include "datasets/dataset_formats.h"
#include "datasets/picture_format.h"
#include "datasets/picture_text.h"
#include "datasets/record_text.h"
#include "io/file.h"

namespace blipft {
namespace {

namespace fs = std::filesystem;

constexpr int64_t tar_block = 512;

/// A shard open for reading.
class TarFile {
 public:
  explicit TarFile(const std::string& path)
      : path_(path), file_(io::open_for_reading(path)), size_(io::file_size(file_, path)) {}

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }

  void read(int64_t offset, void* out, int64_t bytes, const std::string& what) const {
    for (int64_t done = 0; done < bytes;) {
      const ssize_t count = ::pread(file_.get(), static_cast<char*>(out) + done, static_cast<size_t>(bytes - done),
                                    offset + done);
      if (count < 0 && errno == EINTR) continue;
      BLIPFT_USER_CHECK(count >= 0, path_, ": cannot read ", what, " (", std::strerror(errno), ")");
      BLIPFT_USER_CHECK(count > 0, path_, ": ends inside ", what, "; the file is truncated");
      done += count;
    }
  }

 private:
  std::string path_;
  io::FileDescriptor file_;
  int64_t size_ = 0;
};

/// Name, offset and size of a member's content.
struct Member {
  std::string name;
  int64_t offset = 0, bytes = 0;
};

/// Returns a tar number: octal digits, or big-endian binary if the top bit of the first byte is set. -1: it is neither.
int64_t tar_number(const uint8_t* field, int64_t width) {
  if (field[0] & 0x80) {
    uint64_t value = field[0] & 0x7f;
    for (int64_t i = 1; i < width; ++i) {
      if (value >> 55) return -1;
      value = value << 8 | field[i];
    }
    return static_cast<int64_t>(value);
  }
  int64_t value = 0, i = 0;
  while (i < width && field[i] == ' ') ++i;
  for (; i < width && field[i] >= '0' && field[i] <= '7'; ++i) value = value * 8 + (field[i] - '0');
  return i == width || field[i] == 0 || field[i] == ' ' ? value : -1;
}

std::string tar_string(const uint8_t* field, size_t width) {
  const char* text = reinterpret_cast<const char*>(field);
  return {text, strnlen(text, width)};
}

/// Iterates over the members of a tar.
class TarWalk {
 public:
  explicit TarWalk(const TarFile& tar) : tar_(tar) {}

  /// Returns the next regular file, or none at the end.
  std::optional<Member> next() {
    std::string long_name;
    int64_t long_size = -1;  // -1: use the size field of the header
    while (read_header()) {
      const int64_t content = position_ + tar_block;
      const char type = static_cast<char>(header_[156]);
      const bool extension = type == 'L' || type == 'K' || type == 'x' || type == 'g';
      int64_t bytes = tar_number(header_ + 124, 12);
      if (!extension && long_size >= 0) bytes = long_size;
      if (bytes < 0) fail("the size field is no number");
      // Links, devices and directories have no content, whatever their size field contains.
      if (type >= '1' && type <= '6') bytes = 0;
      if (bytes > tar_.size() - content)
        fail(concat("member \"", extension ? "(extended header)" : brief(name(long_name)), "\" has ", bytes,
                    " bytes, but the file ends after ",
                    tar_.size() - content, "; the file is truncated"));
      position_ = content + (bytes + tar_block - 1) / tar_block * tar_block;
      if (type == 'L') {
        long_name = text(content, bytes);
        long_name.resize(strnlen(long_name.data(), long_name.size()));
      } else if (type == 'x') {
        read_pax(text(content, bytes), long_name, long_size);
      } else if (!extension) {
        Member member{name(long_name), content, bytes};
        long_name.clear();
        long_size = -1;
        if (type == '0' || type == 0 || type == '7') return member;
      }
    }
    return std::nullopt;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw UserError(concat(tar_.path(), ": broken tar header at byte ", position_, ": ", what));
  }

  /// Returns false at the end of the archive, which is a block of zeros. Writers write two or more such blocks; one is
  /// enough for readers. A file without such a block was truncated, possibly between two samples.
  bool read_header() {
    BLIPFT_USER_CHECK(position_ < tar_.size(), tar_.path(), ": ends at byte ", tar_.size(), " without the block of",
                      " zeros that closes a tar; the file is truncated: copy or download it again, or write it anew",
                      " (if it is known to be whole, append 1024 zero bytes)");
    tar_.read(position_, header_, tar_block, "a tar header");
    if (std::all_of(header_, header_ + tar_block, [](uint8_t byte) { return byte == 0; })) return false;
    int64_t sum = 8 * ' ';  // the checksum counts its own field as spaces
    for (int64_t i = 0; i < tar_block; ++i) sum += i >= 148 && i < 156 ? 0 : header_[i];
    if (sum != tar_number(header_ + 148, 8))
      fail(header_[0] == 0x1f && header_[1] == 0x8b ? "the file is gzip-compressed; decompress it"
                                                    : "its checksum is wrong");
    return true;
  }

  std::string name(const std::string& long_name) const {
    if (!long_name.empty()) return long_name;
    const std::string last = tar_string(header_, 100);
    const bool ustar = !std::memcmp(header_ + 257, "ustar\0", 6);  // GNU's older form uses the prefix field otherwise
    const std::string prefix = ustar ? tar_string(header_ + 345, 155) : "";
    return prefix.empty() ? last : prefix + "/" + last;
  }

  std::string text(int64_t offset, int64_t bytes) const {
    if (bytes > (1 << 20)) fail(concat("an extended header of ", bytes, " bytes"));
    std::string content(static_cast<size_t>(bytes), '\0');
    tar_.read(offset, content.data(), bytes, "an extended tar header");
    return content;
  }

  /// Parses records "length key=value\n"; length is the size of the whole record.
  void read_pax(const std::string& records, std::string& long_name, int64_t& long_size) const {
    for (size_t at = 0; at < records.size();) {
      const size_t length = std::strtoull(records.c_str() + at, nullptr, 10);
      const size_t space = records.find(' ', at);
      if (length < 5 || at + length > records.size() || space >= at + length) {
        if (records[at] == '\0') return;
        fail("a pax record has a wrong length");
      }
      const std::string record = records.substr(space + 1, at + length - 1 - space - 1);
      if (record.starts_with("path=")) long_name = record.substr(5);
      if (record.starts_with("size=")) long_size = std::strtoll(record.c_str() + 5, nullptr, 10);
      at += length;
    }
  }

  const TarFile& tar_;
  int64_t position_ = 0;
  uint8_t header_[tar_block];
};

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

/// A member in the index. Its name is the sample's key, a dot and the extension.
struct Piece {
  int64_t offset = 0, bytes = 0;
  char extension[5] = "";  ///< as written, without the dot; empty: no such member
  explicit operator bool() const { return extension[0] != 0; }
};

struct Entry {
  size_t shard = 0;
  std::string key;         ///< path of the members up to the first dot of the file name
  Piece picture, caption;  ///< caption: .txt, or .json if there is no .txt
  std::string picture_name() const { return key + "." + picture.extension; }
  std::string caption_name() const { return key + "." + caption.extension; }
  bool has_text_file() const { return lower(caption.extension) == "txt"; }
};

/// Adds a member to its sample. If there are two captions, the .txt is used.
void add_member(const TarFile& tar, const Member& member, size_t dot, Entry& entry) {
  const std::string extension = lower(member.name.substr(dot + 1));
  Piece piece{member.offset, member.bytes, ""};
  member.name.copy(piece.extension, sizeof piece.extension - 1, dot + 1);
  const bool picture = extension != "txt" && extension != "json";
  const int64_t maximum = picture ? max_picture_bytes : max_text_bytes;
  BLIPFT_USER_CHECK(member.bytes <= maximum, tar.path(), ": member \"", brief(member.name), "\" has ", member.bytes,
                    " bytes, expected a ", picture ? "picture" : "caption", " of at most ", maximum,
                    "; write the shard without it");
  Piece& slot = picture ? entry.picture : entry.caption;
  if (slot && !picture && lower(slot.extension) != extension) {
    if (extension == "txt") slot = piece;
    return;
  }
  BLIPFT_USER_CHECK(!slot, tar.path(), ": members \"", brief(entry.key), ".", slot.extension, "\" and \"",
                    brief(member.name),
                    "\" are both the ",
                    picture ? "picture" : "caption", " of one sample");
  slot = piece;
}

/// Pictures that are not part of a sample because of their extension.
struct IgnoredPictures {
  std::unordered_map<std::string, std::string> names;  ///< in the current shard: {key: first name}
  std::string first;                       ///< over all shards
  int64_t unsupported = 0;                 ///< over all shards: pictures in formats such as GIF

  void add(const std::string& key, const std::string& name) {
    if (first.empty()) first = name;
    unsupported += !unsupported_suffix(name).empty();
    names.emplace(key, name);
  }
  /// Returns why there is no picture for `key`, for appending to a message; "": unknown.
  std::string advice(const std::string& key) const {
    const auto found = names.find(key);
    return found == names.end() ? "" : text(found->second);
  }
  std::string text(const std::string& name) const {
    if (const std::string format = unsupported_suffix(name); !format.empty())
      return concat("; found \"", brief(name), "\", a ", format, " (pictures in unsupported formats up to the end of this "
                    "shard: ", unsupported, "), expected JPEG, PNG or WebP. Convert these pictures and write the shard again.");
    const size_t dot = name.find('.', name.rfind('/') + 1);
    return concat("; found \"", brief(name), "\": the key of a sample ends at the first dot of the file name, so here it is \"",
                  brief(name.substr(0, dot)), "\" and the extension is \"", brief(name.substr(dot + 1)),
                  "\". Write the shard with names that have one dot.");
  }
};

/// Appends the samples of one shard, in the order of their first members.
void index_shard(const std::string& path, size_t shard, std::vector<Entry>& entries, IgnoredPictures& ignored) {
  const TarFile tar(path);
  ignored.names.clear();
  std::unordered_map<std::string, size_t> indices;
  TarWalk walk(tar);
  const size_t begin = entries.size();
  while (const std::optional<Member> member = walk.next()) {
    const size_t slash = member->name.rfind('/');
    const size_t base = slash == std::string::npos ? 0 : slash + 1;
    const size_t dot = member->name.find('.', base);
    if (dot == std::string::npos || dot == base) continue;  // no extension, or a hidden file
    const std::string extension = lower(member->name.substr(dot + 1));
    static const std::set<std::string> known = {"jpg", "jpeg", "png", "webp", "txt", "json"};
    const std::string key = member->name.substr(0, dot);
    if (!known.contains(extension)) {
      if (has_supported_suffix(extension) || !unsupported_suffix(member->name).empty()) ignored.add(key, member->name);
      continue;
    }
    const auto [found, added] = indices.try_emplace(key, entries.size());
    if (added) entries.push_back({shard, key, {}, {}});
    add_member(tar, *member, dot, entries[found->second]);
  }
  for (size_t i = begin; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    BLIPFT_USER_CHECK(entry.picture, path, ": member \"", brief(entry.caption_name()),
                      "\" has no picture beside it (\"",
                      brief(entry.key),
                      ".jpg\", .jpeg, .png or .webp)", entry.picture ? "" : ignored.advice(entry.key));
    BLIPFT_USER_CHECK(entry.caption, path, ": member \"", brief(entry.picture_name()),
                      "\" has no caption beside it (\"",
                      brief(entry.key),
                      ".txt\" or .json)");
  }
}

class WebDataset final : public Dataset {
 public:
  WebDataset(const std::vector<std::string>& shards, const TextSettings& settings)
      : shards_(shards), settings_(settings), named_pictures_(settings) {
    named_pictures_.allow_outside = true;    // the picture of a sample is a member, whose name is no path
    for (size_t i = 0; i < shards_.size(); ++i) index_shard(shards_[i], i, entries_, ignored_);
    entries_.shrink_to_fit();
    const auto is_empty = [](const Entry& entry) { return entry.has_text_file() && entry.caption.bytes == 0; };
    BLIPFT_USER_CHECK(entries_.empty() || !std::all_of(entries_.begin(), entries_.end(), is_empty), shards_.front(),
                      ": all ", entries_.size(), " captions (in ", shards_.size(),
                      " shards) are empty, so there is nothing to learn; write them into the .txt files");
  }

  int64_t size() const override { return static_cast<int64_t>(entries_.size()); }
  /// Returns a possible reason for a dataset without samples, for appending to a message.
  std::string advice() const { return ignored_.first.empty() ? "" : ignored_.text(ignored_.first); }

  void identify(const Take& take) const override {
    for (const std::string& shard : shards_) take(std::filesystem::path(shard).filename().string(), 0);
    for (const Entry& entry : entries_) {
      take(entry.key, static_cast<int64_t>(entry.shard));
      take(entry.picture_name(), entry.picture.bytes);
      take(entry.caption_name(), entry.caption.bytes);
    }
  }

  void identify_contents(const Take& take) const override {
    std::optional<TarFile> tar;            // one shard at a time
    size_t opened = 0;
    const auto add_to_digest = [&](const Entry& entry, const Piece& piece, int64_t maximum) {
      try {
        if (!tar || opened != entry.shard) tar.reset(), tar.emplace(shards_[entry.shard]), opened = entry.shard;
        std::string bytes(static_cast<size_t>(std::min(piece.bytes, maximum)), '\0');
        tar->read(piece.offset, bytes.data(), static_cast<int64_t>(bytes.size()), "a member");
        take(bytes, piece.bytes);
      } catch (const UserError&) {
        take("cannot be read", piece.bytes);
      }
    };
    for (const Entry& entry : entries_) add_to_digest(entry, entry.caption, max_text_bytes);
    for (const int64_t i : spread_samples(size(), max_pictures_looked_into))
      add_to_digest(entries_[static_cast<size_t>(i)], entries_[static_cast<size_t>(i)].picture, max_bytes_looked_at);
  }

  Sample read(int64_t index) const override {
    BLIPFT_CHECK(index >= 0 && index < size(), "sample ", index, " of ", size());
    const Entry& entry = entries_[index];
    const TarFile tar(shards_[entry.shard]);
    Sample sample;
    sample.name = tar.path() + ":" + brief(entry.picture_name(), 1000);
    if (settings_.pictures_in_texts) {
      sample.pictures = {file_of(sample.name, entry)};
    } else {
      sample.picture.emplace(static_cast<size_t>(entry.picture.bytes));
      tar.read(entry.picture.offset, sample.picture->data(), entry.picture.bytes,
               concat("member \"", brief(entry.picture_name()), "\""));
    }
    sample.number = index;
    if (const auto record = conversation_in(tar, entry); !record.is_null()) {
      Sample conversation = sample_of_record(record, named_pictures_, location_of(tar, entry));
      sample.segments = std::move(conversation.segments);
      sample.whole = conversation.whole;
      return sample;
    }
    fill_sample(text_of(tar, entry), settings_, sample.name, sample);
    return sample;
  }

  void check_picture_formats() const override {
    const auto entry = [&](int64_t i) -> const Entry& { return entries_[static_cast<size_t>(i)]; };
    const auto name = [&](int64_t i) { return entry(i).picture_name(); };
    refuse_unsupported_pictures(concat(shards_.front(), shards_.size() > 1 ? " and the other shards" : ""), size(), name,
                                [&](int64_t i) -> std::string {
      try {
        std::string bytes(static_cast<size_t>(std::min(entry(i).picture.bytes, format_bytes)), '\0');
        TarFile(shards_[entry(i).shard])
            .read(entry(i).picture.offset, bytes.data(), static_cast<int64_t>(bytes.size()), "a picture");
        return bytes;
      } catch (const UserError&) {           // read() reports the error
        return "";
      }
    });
  }

  std::string unread_keys() const override {
    UnreadKeys unread;
    const std::vector<int64_t> samples = spread_samples(size(), max_sizes_looked_at);
    for (const int64_t i : samples) {
      const Entry& entry = entries_[static_cast<size_t>(i)];
      try {
        if (!entry.has_text_file()) unread.add(unread_keys_of_picture(record_of(TarFile(shards_[entry.shard]), entry), settings_));
      } catch (const UserError&) {           // read() reports the error
      }
    }
    const std::string text = unread.text();
    const bool all = static_cast<int64_t>(samples.size()) == size();
    return all || text.empty() ? text : concat(text, " of ", samples.size(), " records, evenly spread");
  }

  SplitGroup split_group(int64_t) const override { return {}; }  // each sample has its own picture

  Prompt read_prompt(int64_t index) const override {
    BLIPFT_CHECK(index >= 0 && index < size(), "sample ", index, " of ", size());
    const Entry& entry = entries_[static_cast<size_t>(index)];
    const TarFile tar(shards_[entry.shard]);
    Prompt prompt;
    const std::string name = tar.path() + ":" + brief(entry.picture_name(), 1000);
    const auto conversation = conversation_in(tar, entry);
    if (!conversation.is_null()) prompt = prompt_of_record(conversation, named_pictures_, location_of(tar, entry));
    else fill_prompt(text_of(tar, entry), settings_, name, prompt);
    prompt.name = prompt.picture = name;
    if (settings_.pictures_in_texts) prompt.pictures = {file_of(prompt.name, entry)};
    return prompt;
  }

 private:
  PictureFile file_of(const std::string& name, const Entry& entry) const {
    return {name, shards_[entry.shard], entry.picture.offset, entry.picture.bytes};
  }
  static std::string location_of(const TarFile& tar, const Entry& entry) {
    return tar.path() + ":" + brief(entry.caption_name(), 1000);
  }
  static std::string caption_of(const TarFile& tar, const Entry& entry) {
    std::string text(static_cast<size_t>(entry.caption.bytes), '\0');
    tar.read(entry.caption.offset, text.data(), entry.caption.bytes, concat("member \"", brief(entry.caption_name()),
                                                                            "\""));
    return text;
  }
  static nlohmann::json record_of(const TarFile& tar, const Entry& entry) {
    return parse_json(caption_of(tar, entry), location_of(tar, entry));
  }

  /// Returns the record if it is a conversation and the model reads pictures in texts; it then names the sample's picture.
  nlohmann::ordered_json conversation_in(const TarFile& tar, const Entry& entry) const {
    if (!settings_.pictures_in_texts || entry.has_text_file()) return nullptr;
    auto record = parse_json<nlohmann::ordered_json>(caption_of(tar, entry), location_of(tar, entry));
    if (!record.is_object() || (!record.contains(name_of(settings_, "messages")) && !record.contains("conversations"))) return nullptr;
    record.erase("image");
    record["images"] = {entry.picture_name()};
    return record;
  }

  PictureText text_of(const TarFile& tar, const Entry& entry) const {
    if (entry.has_text_file()) return {std::nullopt, {caption_of(tar, entry)}, {}, {}};
    const std::string location = location_of(tar, entry);
    const nlohmann::json record = record_of(tar, entry);
    UnrenderedKeys keys(settings_);
    keys.look_at(record, location);
    if (keys.found()) refuse_unrendered_keys();
    return picture_text_from_json(record, settings_, location);
  }

  // Counts these records only once: with data.on_bad_sample=skip this function is called for many samples.
  void refuse_unrendered_keys() const {
    std::call_once(counted_, [&] {
      unrendered_.emplace(settings_);
      for (const Entry& entry : entries_) {
        if (entry.has_text_file()) continue;
        try {
          const TarFile tar(shards_[entry.shard]);
          unrendered_->look_at(record_of(tar, entry), location_of(tar, entry));
        } catch (const UserError&) {         // read() reports the error
        }
      }
    });
    unrendered_->check();
  }

  const std::vector<std::string> shards_;
  const TextSettings settings_;
  TextSettings named_pictures_;              // for conversations
  mutable std::once_flag counted_;
  mutable std::optional<UnrenderedKeys> unrendered_;
  std::vector<Entry> entries_;
  IgnoredPictures ignored_;
};

}  // namespace

std::vector<std::string> find_shards(const std::string& path) {
  std::vector<std::string> shards;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    for (fs::directory_iterator item(path, ignored), end; !ignored && item != end; item.increment(ignored))
      if (item->path().extension() == ".tar") shards.push_back(item->path().string());
  } else if (fs::exists(path, ignored)) {
    if (path.ends_with(".tar")) shards.push_back(path);
  } else if (path.find_first_of("*?[{") != std::string::npos) {
    glob_t found{};
    if (::glob(path.c_str(), GLOB_BRACE, nullptr, &found) == 0)
      for (size_t i = 0; i < found.gl_pathc; ++i)
        if (std::string(found.gl_pathv[i]).ends_with(".tar")) shards.emplace_back(found.gl_pathv[i]);
    ::globfree(&found);
  }
  std::sort(shards.begin(), shards.end());
  return shards;
}

std::unique_ptr<Dataset> open_webdataset(const std::string& path, const TextSettings& settings) {
  const std::vector<std::string> shards = find_shards(path);
  BLIPFT_USER_CHECK(!shards.empty(), "no WebDataset at ", path,
                    ": expected a .tar file, a directory of .tar files, or a pattern");
  auto dataset = std::make_unique<WebDataset>(shards, settings);
  BLIPFT_USER_CHECK(dataset->size() > 0, path, ": no samples in ", shards.size(),
                    " shards; expected pictures (.jpg, .jpeg, .png, .webp) with .txt or .json captions beside them",
                    dataset->advice());
  return dataset;
}

}  // namespace blipft
