// Pictures in conversations; see record_pictures.h.
#include "datasets/record_pictures.h"

#include <filesystem>
#include <string_view>

#include "blipft/error.h"
#include "io/json.h"
#include "io/paths.h"

namespace blipft {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::string_view placeholder = "<image>";

bool is_absent(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() || (found->is_structured() && found->empty()) || *found == "";
}

/// Returns the file name of a picture: a text, or the "path" or "url" of an object without "bytes".
std::string file_name(const Json& picture, const std::string& here) {
  const bool names_file = picture.is_object() && is_absent(picture, "bytes");
  const Json& name = !names_file ? picture : !is_absent(picture, "path") ? picture["path"] : picture.value("url", Json());
  BLIPFT_USER_CHECK(name.is_string() && name != "", here, " is ", io::brief(picture),
                    ", expected the name of a file. Store the picture as a file and write its path.");
  const auto& text = name.get_ref<const std::string&>();
  BLIPFT_USER_CHECK(text.find("://") == std::string::npos && !text.starts_with("data:"), here, " is ", io::brief(name),
                    ", expected the name of a file. Download or decode the picture and write its path.");
  return text;
}

Json text_part(std::string_view text) { return {{"type", "text"}, {"text", text}}; }

/// Returns the picture that a part names itself, or null for one of the record's.
Json own_picture(const Json& part) {
  for (const char* key : {"image", "image_url", "path", "url"})
    if (!is_absent(part, key)) return part[key];
  return nullptr;
}

}  // namespace

RecordPictures::RecordPictures(const Json& record, const std::string& location)
    : location_(location), key_(is_absent(record, "images") ? "image" : "images") {
  for (const char* key : {"video", "videos", "audio", "audios"})
    BLIPFT_USER_CHECK(is_absent(record, key), location, ": found a key \"", key, "\", expected pictures and texts alone. ",
                      "Remove the record.");
  if (is_absent(record, key_.c_str())) return;
  const Json& value = record[key_];
  const Json list = value.is_array() ? value : Json::array({value});
  for (const Json& picture : list)
    listed_.push_back(file_name(picture, concat(location, ": key \"", key_, "\": picture ", listed_.size() + 1)));
}

void RecordPictures::add_placeholder() {
  if (placeholders_ < listed_.size()) placed_.push_back(listed_[placeholders_]);
  ++placeholders_;
}

Json RecordPictures::parts_of(const Json& content, const std::string& here) {
  Json parts = Json::array();
  if (content.is_string()) {
    const std::string_view text = content.get_ref<const std::string&>();
    size_t begin = 0;
    const auto add_text = [&](size_t end) {
      if (end > begin) parts.push_back(text_part(text.substr(begin, end - begin)));
    };
    for (size_t at; (at = text.find(placeholder, begin)) != std::string_view::npos; begin = at + placeholder.size()) {
      add_text(at);
      parts.push_back({{"type", "image"}});
      add_placeholder();
    }
    if (parts.empty()) return content;
    add_text(text.size());
    return parts;
  }
  if (!content.is_array()) return content;
  for (const Json& part : content) {
    const Json type = part.is_object() ? part.value("type", Json("text")) : Json();
    BLIPFT_USER_CHECK(type == "text" || type == "image" || type == "image_url", here, " has the part ", io::brief(part),
                      ", expected parts of type text or image. Remove the part or the record.");
    if (type == "text") {
      parts.push_back(part);
      continue;
    }
    parts.push_back({{"type", "image"}});
    const Json own = own_picture(part);
    if (own.is_null()) add_placeholder();
    else placed_.push_back(file_name(own, here + ": a part's picture"));
  }
  return parts;
}

std::vector<std::string> RecordPictures::in_order() const {
  BLIPFT_USER_CHECK(placeholders_ == listed_.size(), location_, ": found ",
                    counted(static_cast<int64_t>(listed_.size()), "picture"), " under \"", key_, "\" and ",
                    counted(static_cast<int64_t>(placeholders_), "placeholder"), " in the messages, expected as many of ",
                    "both. Write <image> into a text, or a part {\"type\": \"image\"} into a list, where each picture stands.");
  return placed_;
}

PictureConversation picture_conversation_of(const Json& record, const std::string& key, const TextSettings& settings,
                                            const std::string& location) {
  const std::string prompt = name_of(settings, "prompt");
  BLIPFT_USER_CHECK(record.contains(key) || record.contains(prompt), location, ": found ", keys_of(record),
                    ", expected a key \"", key, "\", or \"", prompt, "\", with a list of messages. Name it in data.keys.");
  RecordPictures pictures(record, location);
  PictureConversation out;
  out.conversation = record.contains(key) ? conversation_of(record, key, settings, location, &pictures)
                                          : conversation_of_prompt(record, settings, location, &pictures);
  out.pictures = pictures.in_order();
  return out;
}

size_t count_pictures(const Json& messages) {
  size_t count = 0;
  for (const Json& message : messages)
    if (const auto content = message.find("content"); content != message.end() && content->is_array())
      for (const Json& part : *content) count += part.is_object() && part.value("type", Json()) == "image";
  return count;
}

std::string picture_path(const std::string& name, const std::string& folder, const TextSettings& settings,
                         const std::string& location) {
  const fs::path root = settings.pictures.empty() ? folder : settings.pictures, path = root / name;
  if (settings.allow_outside) return path.string();
  const fs::path real_root = fs::weakly_canonical(root);
  std::error_code error;
  const bool inside = !io::leads_out(name, real_root) && (!fs::exists(path, error) || io::is_inside(path, real_root));
  BLIPFT_USER_CHECK(inside, location, ": picture \"", brief(name), "\" leads out of ", root.string(),
                    ", by .., as an absolute path or through a link. Copy the picture there, name its folder with ",
                    "data.pictures, or set data.allow_outside: true if you trust this file.");
  return path.string();
}

}  // namespace blipft
