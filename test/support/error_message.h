// The message of the error that an action throws, and what it contains, for tests.
#pragma once

#include <string>

#include "blipft/error.h"

namespace blipft::testing {

/// Returns the message, or "" if nothing is thrown. E: the expected type of error; other types are not caught.
template <class E = UserError, class Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace blipft::testing
