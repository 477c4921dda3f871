// How each family of models writes a conversation: the rules of their published Jinja texts, in C++.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"

namespace blipft {

/// A conversation's text while it is written.
class ChatText {
 public:
  /// Appends to the last segment where that is learnt alike.
  void add(const std::string& text, bool learnt = false);
  std::vector<TextSegment> take() { return std::move(segments_); }

 private:
  std::vector<TextSegment> segments_;
};

struct ChatRequest {
  const std::vector<ChatMessage>& messages;  ///< at least one
  const TextSettings& settings;
  const std::string& place;                  ///< file and line, for messages
  bool generation = false;                   ///< add_generation_prompt: the text ends where an answer begins
};

struct ChatFamily {
  const char* name;                          ///< as data.chat_template takes it
  void (*write)(const ChatRequest& request, ChatText& text);
  bool puts_bos = false, puts_eos = false;   ///< the tokenizer's own tokens
  std::vector<uint64_t> published = {};      ///< jinja_digest() of the texts under which models publish it
};
const std::vector<ChatFamily>& chat_families();

/// Of a template's text, "\n" in Jinja's quotes being the same as a line's end there: FNV-1a, 64 bits.
uint64_t jinja_digest(std::string_view jinja);

}  // namespace blipft
