// Approval of the wording of messages: tests assert the subject of a message, and this class its words.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>

namespace blipft::testing {

/// Returns true if the text has these parts in this order: file and key, the found value, the remedy.
inline bool names(std::string_view text, std::initializer_list<std::string_view> parts) {
  size_t from = 0;
  for (const std::string_view part : parts) {
    from = text.find(part, from);
    if (from == std::string_view::npos) return false;
    from += part.size();
  }
  return true;
}

/// Lines of test/approved_messages.txt, in alphabetical order. With BLIPFT_APPROVE=1 in the environment the file is
/// rewritten from the messages of the tests that run: build/cpu/tests -ts=config.
class ApprovedMessages {
 public:
  static void check(std::string message) {
    static ApprovedMessages approved;
    for (size_t at; (at = message.find('\n')) != std::string::npos;) message.replace(at, 1, "\\n");
    if (approved.writes_) approved.messages_.insert(message);
    else
      CHECK_MESSAGE(approved.messages_.count(message) == 1, "not in test/approved_messages.txt: ", message);
  }

 private:
  static constexpr const char* kFile = "test/approved_messages.txt";

  ApprovedMessages() {
    std::ifstream file(kFile);
    for (std::string line; !writes_ && std::getline(file, line);) messages_.insert(line);
  }
  ~ApprovedMessages() {
    if (!writes_) return;
    std::ofstream file(kFile);
    for (const std::string& message : messages_) file << message << '\n';
  }

  const bool writes_ = std::getenv("BLIPFT_APPROVE") != nullptr;
  std::set<std::string> messages_;
};

/// Returns a message after checking that its wording is approved; returns "" for "".
inline std::string approved(const std::string& message) {
  if (!message.empty()) ApprovedMessages::check(message);
  return message;
}

}  // namespace blipft::testing
