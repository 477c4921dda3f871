// Pictures in the conversations of JSON records, as LLaVA, ShareGPT, OpenAI and TRL write them.
#pragma once

#include <string>
#include <vector>

#include "datasets/record_chat.h"

namespace blipft {

/// The pictures of one record, in the order of their placeholders.
class RecordPictures {
 public:
  /// Reads the list of pictures under "images", or the picture or list under "image". Throws UserError naming `location` (file
  /// and line) for a video, an audio, or a picture that is not the name of a file.
  RecordPictures(const nlohmann::ordered_json& record, const std::string& location);

  bool any() const { return !listed_.empty(); }

  /// Returns the content of a message with its pictures as parts {"type": "image"} among parts {"type": "text", "text"}.
  /// In a text, "<image>" stands for the next picture of the record; in a list of parts, a part of type "image" or
  /// "image_url" does, or for its own picture. A content without pictures is returned as it is.
  nlohmann::ordered_json parts_of(const nlohmann::ordered_json& content, const std::string& here);

  /// Returns the names of the pictures in the order of the parts. Throws UserError if the record has more or fewer pictures
  /// than placeholders.
  std::vector<std::string> in_order() const;

 private:
  void add_placeholder();

  std::string location_, key_;
  std::vector<std::string> listed_;        // of the record
  std::vector<std::string> placed_;
  size_t placeholders_ = 0;                // for listed pictures
};

struct PictureConversation {
  Conversation conversation;
  std::vector<std::string> pictures;       ///< in the order of the parts {"type": "image"} of its messages
};
/// Returns the conversation under `key` of a record, or of its "prompt" and "completion" if they are lists, with its
/// pictures. Throws UserError as conversation_of() and RecordPictures do.
PictureConversation picture_conversation_of(const nlohmann::ordered_json& record, const std::string& key,
                                            const TextSettings& settings, const std::string& location);

/// Returns the number of pictures in messages.
size_t count_pictures(const nlohmann::ordered_json& messages);

/// Returns the path of a record's picture, which is relative to data.pictures or, if that is not set, to `folder`, that of
/// the records. Throws UserError if it leads out of this folder without data.allow_outside.
std::string picture_path(const std::string& name, const std::string& folder, const TextSettings& settings,
                         const std::string& location);

}  // namespace blipft
